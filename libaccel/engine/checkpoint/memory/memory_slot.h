// MemorySlot: one place for one rank's part of an in-memory checkpoint, in memory that outlives the rank.
//
//   0     header: magic, version, state, stamp, bytes of the content, its XXH3, XXH3 of the header itself
//   128   content
//
// The state says "being written" before the first byte of a new content, and "complete" after the last. Whoever ends the
// process in between leaves a slot that does not count. The hash finds what else may have happened to the memory: it was
// mapped in a program that has crashed.
//
// Threads:  one writer; no reader while it writes.
// Cost:     a copy and a hash of the content, in pieces that stay in the cache between the two.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>

#include "runtime/checkpoint/hashed_file.h"

namespace accel::checkpoint {

inline constexpr std::size_t kSlotHeaderBytes = 128;

// Which checkpoint a content is a part of.
struct MemoryStamp {
  std::int64_t serial =
      0;  // grows with each save of the job, over all restarts; the same on all ranks
  std::int64_t generation = 0;
  std::int64_t step = 0;
  int world_size = 0;
  int rank = 0;

  friend bool operator==(const MemoryStamp&, const MemoryStamp&) = default;
  // Whether both are of parts of one checkpoint. Serials alone do not say: nodes that were apart may have given one twice.
  [[nodiscard]] bool is_with(MemoryStamp other) const noexcept {
    other.rank = rank;
    return *this == other;
  }
};

// Called with the bytes copied so far: for tests that end a process in the middle of a copy.
using CopyProgress = std::function<void(std::uint64_t bytes)>;

class SlotWriter {
 public:
  // What the slot held is gone from here on. Requires: more than kSlotHeaderBytes, aligned to 8.
  explicit SlotWriter(std::span<std::byte> slot, CopyProgress progress = {});
  // Requires: there is room.
  void append(std::span<const std::byte> bytes);
  // Without it the slot holds nothing.
  void complete(const MemoryStamp& stamp);

 private:
  std::span<std::byte> slot_;
  CopyProgress progress_;
  std::size_t used_ = kSlotHeaderBytes;
  RunningHash hash_;
};

struct FilledSlot {
  MemoryStamp stamp;
  std::span<const std::byte> content;
  std::uint64_t hash = 0;  // that the content should have
};

// What its header says, which is checked; the content is not looked at. std::nullopt: empty, half written, of another
// version, or the header is damaged.
[[nodiscard]] std::optional<FilledSlot> read_slot(std::span<const std::byte> slot);

// Hashes the content. false: something wrote to it after it was complete.
[[nodiscard]] bool is_intact(const FilledSlot& slot);

}  // namespace accel::checkpoint
