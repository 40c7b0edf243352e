// Call: what a rank does in a step of a group, so that the others can see that they do the same.
//
// It lies in shared memory: what another process wrote there is compared and printed, and nothing else.
//
// Threads:  values and pure functions.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "libaccel/engine/shm/numbers/data_type.h"
#include "libaccel/tensors/alignment.h"

namespace accel::shm {

enum class CallKind : std::uint32_t {
  kNone,
  kBarrier,
  kAllReduce,
  kReduce,
  kReduceScatter,
  kBroadcast,
  kAllGather,
  kGather,
  kScatter,
  kAllToAll,
  kMonitoredBarrier,
  kAllReducePieces,
  kReduceScatterPieces,
};

// All bytes zero is no call.
struct Call {
  std::uint32_t kind = 0;
  std::uint32_t root = 0;
  std::uint32_t type = 0;  // of a reduction: 1 + DataType
  std::uint32_t op = 0;    // 1 + ReduceOp
  std::uint64_t bytes = 0;
  std::array<char, 24> elements =
      {};  // the name of their type, where it is only moved; may be cut off

  friend bool operator==(const Call&, const Call&) = default;
};
static_assert(sizeof(Call) <= kCacheLine);

// Of one that moves bytes.
[[nodiscard]] Call call_of(CallKind kind,
                           std::size_t bytes,
                           std::string_view elements = {},
                           int root = 0) noexcept;
// Of one that reduces.
[[nodiscard]] Call call_of(
    CallKind kind, std::size_t bytes, DataType type, ReduceOp op, int root = 0) noexcept;

// "reduce of 8 bytes, sum of float32, root 1". What does not exist is said as its number.
[[nodiscard]] std::string text_of(const Call& call);

}  // namespace accel::shm
