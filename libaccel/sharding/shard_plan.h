// ShardPlan: which parameters share a unit, where each lies in it, and which part of a unit is whose.
//
// A unit is a flat array of one dtype. Its parameters follow one another, each at a multiple of
// kAlignment bytes; the end is padded so that the unit divides into world_size shards of equal
// length, themselves multiples of kAlignment. Rank r owns the elements [r * S, (r + 1) * S): parts
// of parameters, as the cut falls.
//
//   unit of 3 parameters, 2 ranks:   |aaaaaaa.|bbb.....|cccccccccc......|
//                                    |---- shard 0 ----|---- shard 1 ----|
//
// Cut by tensors, each parameter is one rank's: the largest first, to the rank that has least so far (Graham 1969, "LPT"), and
// shards are as long as the fullest one.
//
//   the same, by tensors:            |cccccccccc......|aaaaaaa.|bbb.....|
//                                    |---- shard 0 ----|---- shard 1 ----|
//
// Threads:  pure functions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include <c10/core/ScalarType.h>

namespace accel::sharding {

inline constexpr std::int64_t kAlignment = 64;  // bytes: a cache line, and any vector register

struct PlannedParameter {
  std::string name;
  std::int64_t numel = 0;
  c10::ScalarType dtype = c10::ScalarType::Float;
  // Parameters with the same group of a wrap policy form a unit; kNoGroup: they are cut by bytes.
  int group = -1;
};
inline constexpr int kNoGroup = -1;

enum class ShardCut {
  kEven,      // at the same number of elements, wherever that falls
  kByTensor,  // between parameters: optimizers whose steps need whole tensors
};

// Where a parameter lies.
struct Slot {
  std::size_t parameter = 0;  // index in the list that was planned
  std::int64_t offset = 0;    // elements from the start of the unit
  std::int64_t numel = 0;
};

struct Unit {
  c10::ScalarType dtype = c10::ScalarType::Float;
  std::int64_t shard_numel = 0;  // elements of one rank
  std::vector<Slot> slots;       // by offset
};

// The part of a parameter that a rank owns.
struct Piece {
  std::size_t parameter = 0;
  std::int64_t unit_offset = 0;       // elements from the start of the unit
  std::int64_t parameter_offset = 0;  // elements from the start of the parameter
  std::int64_t numel = 0;             // above 0
};

// Units in the order of their first parameters. A unit without a group ends before the parameter
// that would take it above max_unit_bytes; one parameter alone may be larger. Requires: world_size
// >= 1, max_unit_bytes >= 1.
[[nodiscard]] std::vector<Unit> plan_units(const std::vector<PlannedParameter>& parameters,
                                           int world_size,
                                           std::int64_t max_unit_bytes,
                                           ShardCut cut = ShardCut::kEven);

// What `rank` owns of a unit, by offset. Empty when only padding falls to it.
[[nodiscard]] std::vector<Piece> pieces_of(const Unit& unit, int rank);

// Elements from the start of `rank`'s shard to the end of the last parameter in it; what follows is padding.
[[nodiscard]] std::int64_t used_numel(const Unit& unit, int rank);

}  // namespace accel::sharding
