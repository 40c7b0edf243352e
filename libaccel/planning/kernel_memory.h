// KernelMemory: what kernels of oneDNN take for themselves: other layouts of their arguments and results, and room to work in.
//
// It depends on the CPU and on choices that oneDNN alone makes. So the kernel is asked: it runs once on zeros, where that is quick as
// it is, else with a small batch and with twice as large a one, on fewer positions. From there it grows with both. What was asked is known to
// the process. What is asked in part may be some percent off: oneDNN chooses by the size of the whole.
//
// Threads:  any; a lock.
// Cost:     some milliseconds for each kernel and size. While a profiler runs kernels are not asked: 0.
#pragma once

#include <cstdint>
#include <functional>
#include <string_view>
#include <vector>

#include <ATen/core/Tensor.h>

#include "libaccel/planning/size_rules.h"

namespace accel::planning {

// Bytes beyond those that `run` returns, while it runs. Its operators go to their kernels.
[[nodiscard]] std::int64_t measured_scratch(const std::function<std::vector<at::Tensor>()>& run);

// Of matrix products in 16 bits. nullptr: none. name: "aten::mm".
[[nodiscard]] std::int64_t (*find_product_scratch(std::string_view name))(Arguments arguments);

// Of aten::convolution and aten::convolution_backward, by their arguments.
[[nodiscard]] std::int64_t convolution_scratch(Arguments arguments);
[[nodiscard]] std::int64_t convolution_backward_scratch(Arguments arguments);

}  // namespace accel::planning
