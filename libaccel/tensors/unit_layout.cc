#include "libaccel/tensors/unit_layout.h"

#include <algorithm>
#include <map>
#include <unordered_set>
#include <utility>

#include <accel/error.h>

#include "libaccel/tensors/alignment.h"

namespace accel {
namespace {

// Fills units of one dtype, one open unit per group.
class Planner {
 public:
  Planner(int world_size, std::int64_t max_unit_bytes)
      : world_size_(world_size), max_unit_bytes_(max_unit_bytes) {}

  // Where a next parameter may begin: multiples of so many elements.
  static std::int64_t block_of(c10::ScalarType dtype) {
    return std::max<std::int64_t>(1,
                                  static_cast<std::int64_t>(kCacheLine / c10::elementSize(dtype)));
  }

  void add(std::size_t index, const PlannedParameter& parameter) {
    const auto element = static_cast<std::int64_t>(c10::elementSize(parameter.dtype));
    const std::pair key{parameter.group, parameter.dtype};
    auto open = open_.find(key);
    const bool is_full = open != open_.end() && parameter.group == kNoGroup &&
                         (used_[open->second] + parameter.numel) * element > max_unit_bytes_;
    if (open == open_.end() || is_full) {
      open = open_.insert_or_assign(key, units_.size()).first;
      units_.push_back({.dtype = parameter.dtype, .num_shards = world_size_});
      used_.push_back(0);
    }
    std::int64_t& used = used_[open->second];
    units_[open->second].slots.push_back({index, used, parameter.numel});
    used = rounded_up(used + parameter.numel, block_of(parameter.dtype));
  }

  std::vector<Unit> units(ShardCut cut) && {
    std::vector<std::int64_t> totals(static_cast<std::size_t>(world_size_));  // bytes, by rank
    for (std::size_t i = 0; i < units_.size(); ++i) {
      if (cut == ShardCut::kByTensor) {
        deal_out(units_[i], totals);
        continue;
      }
      const std::int64_t share = (used_[i] + world_size_ - 1) / world_size_;
      units_[i].shard_numel = rounded_up(share, block_of(units_[i].dtype));
    }
    return std::move(units_);
  }

 private:
  // Gives each parameter of a unit to one rank. Where shards are equally full, to the rank with least in all units.
  void deal_out(Unit& unit, std::vector<std::int64_t>& totals) const {
    const std::int64_t block = block_of(unit.dtype);
    std::vector<Slot*> largest_first;
    for (Slot& slot : unit.slots) largest_first.push_back(&slot);
    std::stable_sort(largest_first.begin(), largest_first.end(), [](const Slot* a, const Slot* b) {
      return a->numel > b->numel;
    });
    std::vector<std::int64_t> loads(totals.size());  // elements of this unit, by rank
    std::vector<std::size_t> owners(unit.slots.size());
    for (Slot* slot : largest_first) {
      std::size_t owner = 0;
      for (std::size_t rank = 1; rank < loads.size(); ++rank) {
        if (std::pair(loads[rank], totals[rank]) < std::pair(loads[owner], totals[owner]))
          owner = rank;
      }
      owners[static_cast<std::size_t>(slot - unit.slots.data())] = owner;
      slot->offset = loads[owner];
      loads[owner] += rounded_up(slot->numel, block);
      totals[owner] += slot->numel * static_cast<std::int64_t>(c10::elementSize(unit.dtype));
    }
    unit.shard_numel = *std::max_element(loads.begin(), loads.end());
    for (std::size_t i = 0; i < owners.size(); ++i)
      unit.slots[i].offset += static_cast<std::int64_t>(owners[i]) * unit.shard_numel;
    std::sort(unit.slots.begin(), unit.slots.end(), [](const Slot& a, const Slot& b) {
      return a.offset < b.offset;
    });
  }

  std::int64_t world_size_;
  std::int64_t max_unit_bytes_;
  std::vector<Unit> units_;
  std::vector<std::int64_t> used_;  // elements, by unit
  std::map<std::pair<int, c10::ScalarType>, std::size_t> open_;
};

void check_names(const std::vector<PlannedParameter>& parameters) {
  std::unordered_set<std::string> names;
  for (const PlannedParameter& parameter : parameters) {
    if (!names.insert(parameter.name).second)
      throw Error(ErrorCode::kInvalidArgument,
                  "two parameters are called '" + parameter.name + "'");
  }
}

std::vector<std::size_t> complete(const std::vector<std::size_t>& order, std::size_t count) {
  std::vector<bool> is_placed(count, false);
  std::vector<std::size_t> whole;
  const auto place = [&](std::size_t parameter) {
    if (!is_placed[parameter]) whole.push_back(parameter);
    is_placed[parameter] = true;
  };
  for (const std::size_t parameter : order) {
    if (parameter >= count)
      throw Error(ErrorCode::kInvalidArgument,
                  "the order names parameter " + std::to_string(parameter) + " of " +
                      std::to_string(count));
    place(parameter);
  }
  for (std::size_t parameter = 0; parameter < count; ++parameter) place(parameter);
  return whole;
}

}  // namespace

std::vector<Unit> plan_units(const std::vector<PlannedParameter>& parameters,
                             int world_size,
                             std::int64_t max_unit_bytes,
                             ShardCut cut) {
  Planner planner(world_size, max_unit_bytes);
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    if (parameters[i].numel > 0) planner.add(i, parameters[i]);
  }
  return std::move(planner).units(cut);
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

std::int64_t used_numel(const Unit& unit, int rank) {
  const std::vector<Piece> pieces = pieces_of(unit, rank);
  if (pieces.empty()) return 0;
  return pieces.back().unit_offset + pieces.back().numel - rank * unit.shard_numel;
}

UnitLayout::UnitLayout(std::vector<PlannedParameter> planned, std::vector<Unit> cut)
    : parameters(std::move(planned)), units(std::move(cut)), places(parameters.size()) {
  for (std::size_t unit = 0; unit < units.size(); ++unit) {
    for (std::size_t slot = 0; slot < units[unit].slots.size(); ++slot)
      places[units[unit].slots[slot].parameter] = {unit, slot};
  }
}

UnitLayout lay_out(std::vector<PlannedParameter> parameters,
                   const std::vector<std::size_t>& order,
                   std::size_t unit_bytes) {
  check_names(parameters);
  // What ends within a multiple of a cache line ends there when it is padded.
  Planner planner(1, static_cast<std::int64_t>(unit_bytes / kCacheLine * kCacheLine));
  for (const std::size_t i : complete(order, parameters.size())) planner.add(i, parameters[i]);
  return {std::move(parameters), std::move(planner).units(ShardCut::kEven)};
}

}  // namespace accel
