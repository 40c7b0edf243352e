// ChannelFrames: the packets on the socket of a worker channel.
//
// SOCK_SEQPACKET keeps their borders. A frame is at most kMaxChannelFrame bytes, little-endian:
//
//   u32 type, u32 bytes of payload, u64 id (a reply has that of its request), then the payload
//
//   type  frame         payload                                   answer
//   ----  ------------  ----------------------------------------  ---------------------------
//      1  GET_SHARED    u64 bytes, u32 keep (0 or 1), str name    REPLY, with a memfd when ok
//      2  COMMIT        u64 step, str path, str digest            REPLY, its text is the token
//      3  REPORT        str text                                  none
//      4  BYE           -                                         none
//      5  DROP_SHARED   str name                                  REPLY
//    256  REPLY         u32 status, str text                      -
//
// `str` is a u32 length and the bytes. Nothing may follow the last field.
//
// Threads:  pure.
// Source:   docs/internals/worker_channel.md; tests/unit/runtime/channel_frames_test.cc;
//           tests/fuzz/fuzz_frames.cc.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <variant>

#include <accel/channel.h>
#include <accel/result.h>

namespace accel {

inline constexpr std::size_t kMaxChannelFrame = 4096;
inline constexpr std::size_t kMaxSharedName = 128;

struct GetSharedFrame {
  std::uint64_t bytes = 0;
  Keep keep = Keep::kGeneration;
  std::string name;
};
struct CommitFrame {
  std::uint64_t step = 0;
  std::string path;
  std::string digest;
};
struct ReportFrame {
  std::string text;
};
struct ByeFrame {};
struct DropSharedFrame {
  std::string name;
};

enum class ChannelStatus : std::uint32_t { kOk, kInvalid, kQuota, kFailed, kStale };

struct ReplyFrame {
  ChannelStatus status = ChannelStatus::kOk;
  std::string text;  // why not; for COMMIT the token
};

struct ChannelFrame {
  std::uint64_t id = 0;
  std::variant<GetSharedFrame, CommitFrame, ReportFrame, ByeFrame, DropSharedFrame, ReplyFrame>
      body;
};

// Errors  kInvalidArgument when the texts are too long for one frame.
[[nodiscard]] Result<std::string> encode_channel_frame(const ChannelFrame& frame);

// Errors  kProtocol for everything that encode_channel_frame() would not have written.
[[nodiscard]] Result<ChannelFrame> decode_channel_frame(std::string_view bytes);

// 1 to kMaxSharedName of [A-Za-z0-9_.-].
[[nodiscard]] bool is_shared_name(std::string_view name) noexcept;

}  // namespace accel
