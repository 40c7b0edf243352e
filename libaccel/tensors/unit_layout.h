// UnitLayout: which parameters share a unit, where each lies in it, and which part of a unit is whose.
//
// A unit is what is filled and evicted, gathered and reduced together: a flat array of one dtype. Its parameters follow one
// another, each at a multiple of a cache line, so any kernel may use them where they are. The end is padded so that the unit
// divides into shards of equal length, themselves multiples of a cache line. Rank r owns the elements [r * S, (r + 1) * S):
// parts of parameters, as the cut falls. Nobody reads what lies between parameters.
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
// Threads:  values and pure functions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include <c10/core/ScalarType.h>

namespace accel {

inline constexpr int kNoGroup = -1;

struct PlannedParameter {
  std::string name;  // the first one of a tied parameter
  std::int64_t numel = 0;
  c10::ScalarType dtype = c10::ScalarType::Float;
  // Parameters with the same group of a wrap policy form a unit; kNoGroup: they are cut by bytes.
  int group = kNoGroup;
};

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
  std::int64_t num_shards = 1;
  std::int64_t shard_numel = 0;  // elements of one rank
  std::vector<Slot> slots;       // by offset

  [[nodiscard]] std::int64_t numel() const noexcept { return num_shards * shard_numel; }
  [[nodiscard]] std::size_t bytes_of(std::int64_t elements) const {
    return static_cast<std::size_t>(elements) * c10::elementSize(dtype);
  }
  [[nodiscard]] std::size_t bytes() const { return bytes_of(numel()); }
};

// The part of a parameter that a rank owns.
struct Piece {
  std::size_t parameter = 0;
  std::int64_t unit_offset = 0;       // elements from the start of the unit
  std::int64_t parameter_offset = 0;  // elements from the start of the parameter
  std::int64_t numel = 0;             // above 0
};

// Units in the order of their first parameters. A unit without a group ends before the parameter that would take it above
// max_unit_bytes; one parameter alone may be larger. Those without elements are in no unit. Requires: world_size >= 1,
// max_unit_bytes >= 1.
[[nodiscard]] std::vector<Unit> plan_units(const std::vector<PlannedParameter>& parameters,
                                           int world_size,
                                           std::int64_t max_unit_bytes,
                                           ShardCut cut = ShardCut::kEven);

// What `rank` owns of a unit, by offset. Empty when only padding falls to it.
[[nodiscard]] std::vector<Piece> pieces_of(const Unit& unit, int rank);

// Elements from the start of `rank`'s shard to the end of the last parameter in it; what follows is padding.
[[nodiscard]] std::int64_t used_numel(const Unit& unit, int rank);

struct SlotPlace {
  static constexpr std::size_t kNoUnit = std::numeric_limits<std::size_t>::max();
  std::size_t unit = kNoUnit;
  std::size_t slot = 0;  // index into Unit::slots
};

// Units with their parameters.
struct UnitLayout {
  UnitLayout(std::vector<PlannedParameter> parameters, std::vector<Unit> units);

  std::vector<PlannedParameter> parameters;
  std::vector<Unit> units;
  std::vector<SlotPlace> places;  // of each parameter
};

// Units of one shard, cut as plan_units() does, padding counted, in a given order (that of their first use, when it is
// known). `order` has indices into `parameters`; those that it lacks follow in their own order, and repeated ones count once.
// One without elements has a place too. Throws kInvalidArgument: a name twice, an index that is out of range.
[[nodiscard]] UnitLayout lay_out(std::vector<PlannedParameter> parameters,
                                 const std::vector<std::size_t>& order,
                                 std::size_t unit_bytes);

}  // namespace accel
