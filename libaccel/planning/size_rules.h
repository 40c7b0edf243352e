// SizeRules: what an operator of the CPU gives, by the sizes of its arguments, where LibTorch has no kernel that tells without
// computing (Python has such rules in torch/_meta_registrations.py; C++ has none).
//
// They follow the kernels of the CPU: also how the results lie in memory, and what a kernel takes for a moment where that grows
// with the tensors. tests/unit/libaccel/planning/step_plan_test.cc compares with the kernels.
//
// Threads:  pure, but for LSTMs (lstm_rules.h).
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include <ATen/core/ivalue.h>
#include <c10/core/ScalarType.h>

namespace accel::planning {

struct Shape {
  std::vector<std::int64_t> sizes;
  c10::ScalarType dtype = c10::ScalarType::Float;
  std::vector<std::int64_t> strides = {};  // empty: row-major
  bool is_defined = true;
  std::int64_t least_bytes = 0;  // of its memory, where that is more than its elements take
};

struct Sized {
  std::vector<Shape> results;
  std::int64_t scratch = 0;  // bytes, while the kernel runs
};

using Arguments = c10::ArrayRef<c10::IValue>;
using SizeRule = Sized (*)(Arguments arguments);

// nullptr: none. name: "aten::convolution", with the overload behind a point where it has one.
[[nodiscard]] SizeRule find_size_rule(std::string_view name);

}  // namespace accel::planning
