// UnitLayout: which parameters are filled and evicted together, and where each lies in its unit.
//
// Parameters, in a given order (that of their first use, when it is known), are cut into units by bytes. In a unit those
// of one dtype and of one answer to "is it trained?" lie side by side, as a segment: a flat optimizer or reducer works on
// segments and never meets a frozen or a foreign element.
//
//   unit 0: | segment fp32 trained: fc1.weight | fc1.bias | ... | segment fp32 frozen: table.weight | ... |
//
// Every parameter and every segment begins on a cache line (64 bytes), so a page may be used by any kernel. What lies
// between them is padding: nobody reads it, and sources may leave it unset.
//
// Threads:  values and pure functions.
// Cost:     bytes of a unit = sum of its parameters, each rounded up to 64.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include <c10/core/ScalarType.h>

namespace accel::pager {

inline constexpr std::size_t kAlignment = 64;

struct ParameterSpec {
  std::string name;                                // the first one of a tied parameter
  c10::ScalarType dtype = c10::ScalarType::Float;  // of its pages
  std::size_t bytes = 0;                           // of its pages
  bool is_trained = true;
};

struct Slot {
  std::size_t parameter = 0;  // index into UnitLayout::parameters
  std::size_t offset = 0;     // bytes from the begin of the unit
  std::size_t bytes = 0;
};

struct Segment {
  c10::ScalarType dtype = c10::ScalarType::Float;
  bool is_trained = true;
  std::size_t offset = 0;  // bytes from the begin of the unit
  std::size_t bytes = 0;   // with the padding between its slots, not behind the last one
  std::size_t first_slot = 0;
  std::size_t num_slots = 0;
};

struct Unit {
  std::vector<Slot> slots;        // by offset
  std::vector<Segment> segments;  // by offset; together they hold all slots
  std::size_t bytes = 0;          // a multiple of kAlignment
};

struct SlotPlace {
  std::size_t unit = 0;
  std::size_t slot = 0;  // index into Unit::slots
};

struct UnitLayout {
  std::vector<ParameterSpec> parameters;
  std::vector<Unit> units;
  std::vector<SlotPlace> places;  // of each parameter

  [[nodiscard]] std::size_t largest_unit_bytes() const noexcept;
  [[nodiscard]] std::size_t total_bytes() const noexcept;
};

// Cuts a new unit before each parameter that would take the current one over `unit_bytes`; a parameter larger than that
// is a unit of its own. `order` has indices into `parameters`; those that it lacks follow in their own order, and
// repeated ones count once. Throws kInvalidArgument: a name twice, an index that is out of range, a parameter whose
// bytes are no multiple of its dtype's.
[[nodiscard]] UnitLayout lay_out(std::vector<ParameterSpec> parameters,
                                 const std::vector<std::size_t>& order,
                                 std::size_t unit_bytes);

}  // namespace accel::pager
