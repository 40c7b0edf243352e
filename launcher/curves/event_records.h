// EventRecords: the scalars of TensorBoard's event files.
//
//   file    := record*
//   record  := u64 length | u32 masked crc32c(length) | event | u32 masked crc32c(event)      all little-endian
//
// Only what a curve needs: wall time, step and simple_value summaries, which SummaryWriter of PyTorch, tensorboardX and libaccel write.
// libaccel/tracking/event_message.h writes such files.
//
// Threads:  pure.
// Source:   TFRecord; TensorBoard's event.proto and summary.proto.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace accel::launcher {

struct EventScalar {
  std::string tag;
  std::int64_t step = 0;
  double wall_time = 0;
  double value = 0;
};

struct EventScalars {
  std::vector<EventScalar> scalars;  // in the order of the file
  bool is_broken = false;            // a checksum or a message was wrong; what follows is left out
};

// An unfinished record at the end is left out.
[[nodiscard]] EventScalars event_scalars(std::string_view file);

}  // namespace accel::launcher
