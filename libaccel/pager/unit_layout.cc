#include "libaccel/pager/unit_layout.h"

#include <algorithm>
#include <unordered_set>
#include <utility>

#include <accel/error.h>

#include "libaccel/alignment.h"

namespace accel::pager {
namespace {

void check_specs(const std::vector<ParameterSpec>& parameters) {
  std::unordered_set<std::string> names;
  for (const ParameterSpec& parameter : parameters) {
    if (!names.insert(parameter.name).second)
      throw Error(ErrorCode::kInvalidArgument,
                  "two parameters are called '" + parameter.name + "'");
    const std::size_t element = c10::elementSize(parameter.dtype);
    if (parameter.bytes % element != 0)
      throw Error(ErrorCode::kInvalidArgument,
                  "parameter '" + parameter.name + "' has " + std::to_string(parameter.bytes) +
                      " bytes, which is no multiple of the " + std::to_string(element) +
                      " bytes of an element of " + c10::toString(parameter.dtype));
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

bool belongs(const Segment& segment, const ParameterSpec& parameter) {
  return segment.dtype == parameter.dtype && segment.is_trained == parameter.is_trained;
}

// The members of a unit, those of one segment together, segments in the order of their first member.
Unit arrange(const std::vector<ParameterSpec>& parameters,
             const std::vector<std::size_t>& members) {
  Unit unit;
  for (const std::size_t member : members) {
    const auto known =
        std::find_if(unit.segments.begin(), unit.segments.end(), [&](const Segment& segment) {
          return belongs(segment, parameters[member]);
        });
    if (known == unit.segments.end())
      unit.segments.push_back({parameters[member].dtype, parameters[member].is_trained});
  }
  for (Segment& segment : unit.segments) {
    segment.offset = unit.bytes;
    segment.first_slot = unit.slots.size();
    for (const std::size_t member : members) {
      if (!belongs(segment, parameters[member])) continue;
      unit.slots.push_back({member, unit.bytes, parameters[member].bytes});
      segment.bytes = unit.bytes + parameters[member].bytes - segment.offset;
      unit.bytes += rounded_up(parameters[member].bytes, kAlignment);
    }
    segment.num_slots = unit.slots.size() - segment.first_slot;
  }
  return unit;
}

}  // namespace

std::size_t UnitLayout::largest_unit_bytes() const noexcept {
  std::size_t largest = 0;
  for (const Unit& unit : units) largest = std::max(largest, unit.bytes);
  return largest;
}

std::size_t UnitLayout::total_bytes() const noexcept {
  std::size_t total = 0;
  for (const Unit& unit : units) total += unit.bytes;
  return total;
}

UnitLayout lay_out(std::vector<ParameterSpec> parameters,
                   const std::vector<std::size_t>& order,
                   std::size_t unit_bytes) {
  check_specs(parameters);
  UnitLayout layout;
  layout.places.resize(parameters.size());
  std::vector<std::size_t> members;
  std::size_t bytes = 0;
  const auto cut = [&] {
    if (members.empty()) return;
    const std::size_t index = layout.units.size();
    layout.units.push_back(arrange(parameters, members));
    const Unit& unit = layout.units.back();
    for (std::size_t slot = 0; slot < unit.slots.size(); ++slot)
      layout.places[unit.slots[slot].parameter] = {index, slot};
    members.clear();
    bytes = 0;
  };
  for (const std::size_t parameter : complete(order, parameters.size())) {
    const std::size_t more = rounded_up(parameters[parameter].bytes, kAlignment);
    if (bytes + more > unit_bytes) cut();
    members.push_back(parameter);
    bytes += more;
  }
  cut();
  layout.parameters = std::move(parameters);
  return layout;
}

}  // namespace accel::pager
