// GroupMemory: what the ranks of one node share: a line of each (rank_line.h), two slots of each for collectives, and a ring
// from each to each for messages (point_to_point.h).
//
//   line of rank 0 | ... | line of rank n-1 | rank 0: calls, bell, cores, locations, stop word, slot 0, slot 1 | rank 1: ...
//   | ring 0 to 0 | ring 0 to 1 | ... | ring n-1 to n-1
//
// It is a memfd: nothing has a name in a file system, and it is gone with the last process that maps it. All bytes zero
// is a valid beginning, so it may come from anybody who hands the same descriptor to every rank (the supervisor's
// channel does).
//
// Threads:  a value; what it points to is shared.
// Cost:     2 slots a rank, n * n rings; pages are taken as they are first written.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>

#include <accel/channel.h>
#include <accel/result.h>

#include "libaccel/engine/shm/memory/buffer_location.h"
#include "libaccel/engine/shm/memory/call.h"
#include "libaccel/engine/shm/memory/core_set.h"
#include "libaccel/engine/shm/memory/memory_offer.h"
#include "libaccel/engine/shm/memory/rank_line.h"
#include "runtime/unique_fd.h"

namespace accel::shm {

inline constexpr int kMaxRanks = 256;  // on one node

struct GroupShape {
  int world_size = 1;
  std::size_t slot_bytes = 256 * 1024;  // a multiple of 4096, a cache line at least for each rank

  // The same number on every rank, or they are not of one group.
  [[nodiscard]] std::uint64_t fingerprint() const noexcept;
};

// The state of a ring: how many bytes its writer has written and its reader has read, ever.
struct Ring {
  alignas(64) std::atomic<std::uint64_t> written;
  alignas(64) std::atomic<std::uint64_t> read;
};

class GroupMemory {
 public:
  // Bytes of the memory of such a group.
  [[nodiscard]] static std::size_t size_of(const GroupShape& shape) noexcept;

  // An empty memory. Errors  kInvalidArgument: the shape is impossible; kOutOfMemory with the errno.
  [[nodiscard]] static Result<UniqueFd> create(const GroupShape& shape);

  // Maps it; `memory` may be closed afterwards. Errors  kInvalidArgument: the shape is impossible, or the memory has
  // another size; kOutOfMemory.
  [[nodiscard]] static Result<GroupMemory> map(int memory, const GroupShape& shape);

  // Stands on what the supervisor's channel has mapped already. Errors  kInvalidArgument, as map().
  [[nodiscard]] static Result<GroupMemory> on(SharedMemory region, const GroupShape& shape);

  GroupMemory(GroupMemory&& other) noexcept;
  GroupMemory& operator=(GroupMemory&&) = delete;
  ~GroupMemory();

  // Takes the pages that `rank` writes, so that none is missing later, when there would be a signal instead of an error.
  // Near to the processor that calls. Errors  kOutOfMemory. Before Linux 5.14: nothing is taken.
  [[nodiscard]] Result<void> reserve(int rank) const;

  [[nodiscard]] RankLine& line(int rank) const noexcept;
  // `parity` is 0 or 1.
  [[nodiscard]] Call& call(int rank, unsigned parity) const noexcept;
  [[nodiscard]] std::byte* slot(int rank, unsigned parity) const noexcept;
  [[nodiscard]] CoreSet& cores(int rank) const noexcept;
  // Beside the call of the same parity.
  [[nodiscard]] BufferLocation& location(int rank, unsigned parity) const noexcept;
  // Of the rank's arena; valid once a location in it was published.
  [[nodiscard]] MemoryOffer& arena(int rank) const noexcept;
  // Of all ranks (stop_word.h).
  [[nodiscard]] std::atomic<std::uint64_t>& stop_word() const noexcept;
  // Rung when a ring of the rank has changed.
  [[nodiscard]] Bell& bell(int rank) const noexcept;
  // From a rank to a rank, and the bytes behind it: ring_bytes().
  [[nodiscard]] Ring& ring(int from, int to) const noexcept;
  [[nodiscard]] std::byte* ring_room(int from, int to) const noexcept;
  [[nodiscard]] std::size_t ring_bytes() const noexcept;

 private:
  GroupMemory(std::byte* begin, const GroupShape& shape) : begin_(begin), shape_(shape) {}
  [[nodiscard]] std::byte* room(int rank) const noexcept;

  std::byte* begin_ = nullptr;
  GroupShape shape_;
  std::optional<SharedMemory> region_;  // what unmaps it, when map() has not mapped it
};

}  // namespace accel::shm
