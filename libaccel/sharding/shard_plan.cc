#include "libaccel/sharding/shard_plan.h"

#include <algorithm>
#include <map>
#include <utility>

namespace accel::sharding {
namespace {

std::int64_t rounded_up(std::int64_t value, std::int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

// Fills units of one dtype, one open unit per group.
class Planner {
 public:
  Planner(int world_size, std::int64_t max_unit_bytes)
      : world_size_(world_size), max_unit_bytes_(max_unit_bytes) {}

  void add(std::size_t index, const PlannedParameter& parameter) {
    const auto element = static_cast<std::int64_t>(c10::elementSize(parameter.dtype));
    const std::pair key{parameter.group, parameter.dtype};
    auto open = open_.find(key);
    const bool is_full = open != open_.end() && parameter.group == kNoGroup &&
                         (used_[open->second] + parameter.numel) * element > max_unit_bytes_;
    if (open == open_.end() || is_full) {
      open = open_.insert_or_assign(key, units_.size()).first;
      units_.push_back({.dtype = parameter.dtype, .shard_numel = 0, .slots = {}});
      used_.push_back(0);
    }
    std::int64_t& used = used_[open->second];
    units_[open->second].slots.push_back({index, used, parameter.numel});
    used = rounded_up(used + parameter.numel, std::max<std::int64_t>(1, kAlignment / element));
  }

  std::vector<Unit> units() && {
    for (std::size_t i = 0; i < units_.size(); ++i) {
      const auto element = static_cast<std::int64_t>(c10::elementSize(units_[i].dtype));
      const std::int64_t share = (used_[i] + world_size_ - 1) / world_size_;
      units_[i].shard_numel = rounded_up(share, std::max<std::int64_t>(1, kAlignment / element));
    }
    return std::move(units_);
  }

 private:
  std::int64_t world_size_;
  std::int64_t max_unit_bytes_;
  std::vector<Unit> units_;
  std::vector<std::int64_t> used_;  // elements, by unit
  std::map<std::pair<int, c10::ScalarType>, std::size_t> open_;
};

}  // namespace

std::vector<Unit> plan_units(const std::vector<PlannedParameter>& parameters,
                             int world_size,
                             std::int64_t max_unit_bytes) {
  Planner planner(world_size, max_unit_bytes);
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    if (parameters[i].numel > 0) planner.add(i, parameters[i]);
  }
  return std::move(planner).units();
}

std::vector<Piece> pieces_of(const Unit& unit, int rank) {
  const std::int64_t begin = rank * unit.shard_numel;
  const std::int64_t end = begin + unit.shard_numel;
  std::vector<Piece> pieces;
  for (const Slot& slot : unit.slots) {
    const std::int64_t from = std::max(begin, slot.offset);
    const std::int64_t to = std::min(end, slot.offset + slot.numel);
    if (from < to) pieces.push_back({slot.parameter, from, from - slot.offset, to - from});
  }
  return pieces;
}

}  // namespace accel::sharding
