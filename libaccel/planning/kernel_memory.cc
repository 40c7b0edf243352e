#include "libaccel/planning/kernel_memory.h"

#include <algorithm>
#include <array>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/convolution.h>
#include <ATen/ops/convolution_backward.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/zeros.h>
#include <c10/core/Allocator.h>
#include <c10/util/StringUtil.h>
#include <c10/util/ThreadLocalDebugInfo.h>

#include "libaccel/interception/kernel_scope.h"

namespace accel::planning {
namespace {

class ReportedMemory final : public c10::MemoryReportingInfoBase {
 public:
  void reportMemoryUsage(void* /*memory*/,
                         std::int64_t bytes,
                         std::size_t /*allocated*/,
                         std::size_t /*reserved*/,
                         c10::Device device) override {
    if (!device.is_cpu()) return;
    live_ += bytes;
    peak_ = std::max(peak_, live_);
  }
  [[nodiscard]] bool memoryProfilingEnabled() const override { return true; }
  [[nodiscard]] std::int64_t beyond_results() const noexcept { return peak_ - live_; }

 private:
  std::int64_t live_ = 0;
  std::int64_t peak_ = 0;
};

using SizeList = std::vector<std::int64_t>;

struct Convolution {
  SizeList input;
  SizeList output;  // of a backward; else empty
  SizeList weight;
  bool has_bias = false;
  SizeList stride, padding, dilation, output_padding;
  bool is_transposed = false;
  std::int64_t groups = 1;
  c10::ScalarType dtype = c10::ScalarType::Float;
  at::MemoryFormat input_format = at::MemoryFormat::Contiguous;
  at::MemoryFormat weight_format = at::MemoryFormat::Contiguous;
  at::MemoryFormat output_format = at::MemoryFormat::Contiguous;
  std::array<bool, 3> wanted{};  // of a backward
};

std::string convolution_key(const Convolution& one) {
  const auto list = [](const SizeList& numbers) { return c10::str(c10::IntArrayRef(numbers)); };
  return c10::str(list(one.input),
                  list(one.output),
                  list(one.weight),
                  one.has_bias,
                  list(one.stride),
                  list(one.padding),
                  list(one.dilation),
                  list(one.output_padding),
                  one.is_transposed,
                  one.groups,
                  one.dtype,
                  one.input_format,
                  one.weight_format,
                  one.output_format,
                  one.wanted[0],
                  one.wanted[1],
                  one.wanted[2]);
}

std::int64_t asked_scratch(const Convolution& one) {
  const interception::NoKernelScope plain;
  const at::NoGradGuard no_grad;
  const auto zeros = [&](const SizeList& sizes, at::MemoryFormat format) {
    return at::zeros(sizes, one.dtype).contiguous(format);
  };
  const at::Tensor input = zeros(one.input, one.input_format);
  const at::Tensor weight = zeros(one.weight, one.weight_format);
  const SizeList of_bias = {one.is_transposed ? one.weight[1] * one.groups : one.weight[0]};
  const auto bias = one.has_bias ? std::optional(at::zeros(of_bias, one.dtype)) : std::nullopt;
  const auto forward = [&] {
    return at::convolution(input,
                           weight,
                           bias,
                           one.stride,
                           one.padding,
                           one.dilation,
                           one.is_transposed,
                           one.output_padding,
                           one.groups);
  };
  if (one.output.empty()) return measured_scratch([&] { return std::vector{forward()}; });
  const at::Tensor gradient = zeros(forward().sizes().vec(), one.output_format);
  return measured_scratch([&] {
    const auto [of_input, of_weight, bias_gradient] =
        at::convolution_backward(gradient,
                                 input,
                                 weight,
                                 c10::OptionalIntArrayRef(of_bias),
                                 one.stride,
                                 one.padding,
                                 one.dilation,
                                 one.is_transposed,
                                 one.output_padding,
                                 one.groups,
                                 one.wanted);
    return std::vector{of_input, of_weight, bias_gradient};
  });
}

double num_elements(const SizeList& numbers) {
  double product = 1;
  for (const std::int64_t number : numbers) product *= static_cast<double>(number);
  return product;
}

// About its operations: a window at each position of the input.
double cost_of(const Convolution& one) {
  return 2 * num_elements(one.input) / static_cast<double>(one.input[1]) * num_elements(one.weight);
}

// Kernels of small batches may be others than of one sample.
constexpr std::int64_t kSmallBatch = 8;
constexpr double kQuick = 2e9;      // as it is
constexpr double kQuickPart = 2e8;  // else so much of it

// Halves the positions while the windows still fit.
void shrink(Convolution& one) {
  for (bool has_changed = true; has_changed && cost_of(one) > kQuickPart;) {
    has_changed = false;
    for (std::size_t i = 2; i < one.input.size(); ++i) {
      const std::size_t axis = one.dilation.size() == 1 ? 0 : i - 2;
      const std::int64_t fewest = 4 * (one.dilation[axis] * (one.weight[i] - 1) + 1);
      if (one.input[i] / 2 < fewest) continue;
      one.input[i] /= 2;
      has_changed = true;
    }
  }
}

// What was asked before; `ask` otherwise.
template <typename Ask>
std::int64_t known_or_asked(const std::string& key, const Ask& ask) {
  static std::mutex mutex;
  static std::map<std::string, std::int64_t> known;
  const std::lock_guard lock(mutex);
  if (const auto found = known.find(key); found != known.end()) return found->second;
  return known.emplace(key, std::max<std::int64_t>(0, ask())).first->second;
}

std::int64_t scratch_of(const Convolution& one) {
  Convolution small = one;
  std::int64_t bytes = 0;
  if (cost_of(one) <= kQuick || one.input[0] <= kSmallBatch) {
    if (cost_of(one) > kQuick) shrink(small);
    const double growth = num_elements(one.input) / num_elements(small.input);
    bytes = static_cast<std::int64_t>(growth * static_cast<double>(asked_scratch(small)));
  } else {
    small.input[0] = kSmallBatch;
    shrink(small);
    const auto of_small = static_cast<double>(asked_scratch(small));
    const double growth = num_elements(one.input) / num_elements(small.input);
    small.input[0] = 2 * kSmallBatch;
    const double of_twice = static_cast<double>(asked_scratch(small));
    bytes = static_cast<std::int64_t>(of_small + (growth - 1) * (of_twice - of_small));
  }
  return bytes;
}

std::int64_t known_scratch(const Convolution& one) {
  if (num_elements(one.input) == 0) return 0;
  return known_or_asked(convolution_key(one), [&] { return scratch_of(one); });
}

// Without a batch, as one of one sample.
SizeList batched(const at::Tensor& tensor, std::int64_t dimensions) {
  SizeList sizes = tensor.sizes().vec();
  if (tensor.dim() < dimensions) sizes.insert(sizes.begin(), 1);
  return sizes;
}

// The arguments from `first` on are input, weight, and behind one more stride, padding, ...
Convolution convolution_of(Arguments arguments, std::size_t first) {
  const at::Tensor& input = arguments[first].toTensor();
  const at::Tensor& weight = arguments[first + 1].toTensor();
  return {.input = batched(input, weight.dim()),
          .weight = weight.sizes().vec(),
          .stride = arguments[first + 3].toIntVector(),
          .padding = arguments[first + 4].toIntVector(),
          .dilation = arguments[first + 5].toIntVector(),
          .output_padding = arguments[first + 7].toIntVector(),
          .is_transposed = arguments[first + 6].toBool(),
          .groups = arguments[first + 8].toInt(),
          .dtype = input.scalar_type(),
          .input_format = input.dim() == weight.dim() ? input.suggest_memory_format()
                                                      : at::MemoryFormat::Contiguous,
          .weight_format = weight.suggest_memory_format()};
}

// ---- matrix products ----

struct Product {
  std::int64_t rows = 0, inner = 0, columns = 0;
  bool is_left_transposed = false, is_right_transposed = false;
  c10::ScalarType dtype = c10::ScalarType::BFloat16;

  [[nodiscard]] double bytes() const {
    return static_cast<double>(rows * inner + inner * columns + rows * columns);
  }
  [[nodiscard]] double flops() const {
    return 2 * static_cast<double>(rows) * static_cast<double>(inner) *
           static_cast<double>(columns);
  }
};

bool lies_transposed(const at::Tensor& matrix) {
  return matrix.stride(0) == 1 && matrix.stride(1) != 1;
}

// Of the other layouts that a kernel makes of its arguments and results: as many as these have elements.
std::int64_t scratch_of(const Product& one) {
  constexpr double kQuickProduct = 2e7;  // without instructions for 16 bits
  Product small = one;
  while (small.flops() > kQuickProduct) {
    std::int64_t& most = *std::ranges::max(std::array{&small.rows, &small.inner, &small.columns},
                                           {},
                                           [](const auto* size) { return *size; });
    most = (most + 1) / 2;
  }
  const interception::NoKernelScope plain;
  const at::NoGradGuard no_grad;
  const auto matrix = [&](std::int64_t rows, std::int64_t columns, bool is_transposed) {
    return is_transposed ? at::zeros({columns, rows}, one.dtype).t()
                         : at::zeros({rows, columns}, one.dtype);
  };
  const at::Tensor left = matrix(small.rows, small.inner, one.is_left_transposed);
  const at::Tensor right = matrix(small.inner, small.columns, one.is_right_transposed);
  const auto asked = measured_scratch([&] { return std::vector{at::mm(left, right)}; });
  return static_cast<std::int64_t>(static_cast<double>(asked) * one.bytes() / small.bytes());
}

template <std::size_t first>
std::int64_t product_scratch(Arguments arguments) {
  const at::Tensor& left = arguments[first].toTensor();
  const at::Tensor& right = arguments[first + 1].toTensor();
  if (!c10::isReducedFloatingType(left.scalar_type()) || left.numel() == 0 || right.numel() == 0)
    return 0;
  const Product one{.rows = left.size(0),
                    .inner = left.size(1),
                    .columns = right.size(1),
                    .is_left_transposed = lies_transposed(left),
                    .is_right_transposed = lies_transposed(right),
                    .dtype = left.scalar_type()};
  const std::string key = c10::str("mm ",
                                   one.rows,
                                   ' ',
                                   one.inner,
                                   ' ',
                                   one.columns,
                                   one.is_left_transposed,
                                   one.is_right_transposed,
                                   one.dtype);
  return known_or_asked(key, [&] { return scratch_of(one); });
}

}  // namespace

std::int64_t (*find_product_scratch(std::string_view name))(Arguments arguments) {
  if (name == "aten::mm") return product_scratch<0>;
  if (name == "aten::addmm") return product_scratch<1>;
  return nullptr;
}

std::int64_t measured_scratch(const std::function<std::vector<at::Tensor>()>& run) {
  constexpr auto kProfiler = c10::DebugInfoKind::PROFILER_STATE;
  if (c10::ThreadLocalDebugInfo::get(kProfiler) != nullptr) return 0;
  const interception::NoKernelScope plain;
  const auto memory = std::make_shared<ReportedMemory>();
  const c10::DebugInfoGuard guard(kProfiler, memory);
  const std::vector<at::Tensor> results = run();
  return memory->beyond_results();
}

std::int64_t convolution_scratch(Arguments arguments) {
  Convolution one = convolution_of(arguments, 0);
  one.has_bias = arguments[2].isTensor() && arguments[2].toTensor().defined();
  return known_scratch(one);
}

std::int64_t convolution_backward_scratch(Arguments arguments) {
  Convolution one = convolution_of(arguments, 1);
  const auto wanted = arguments[10].toBoolList();
  one.wanted = {wanted[0], wanted[1], wanted[2]};
  one.has_bias = one.wanted[2];
  const at::Tensor& gradient = arguments[0].toTensor();
  const std::int64_t dimensions = arguments[2].toTensor().dim();
  one.output = batched(gradient, dimensions);
  if (gradient.dim() == dimensions) one.output_format = gradient.suggest_memory_format();
  return known_scratch(one);
}

}  // namespace accel::planning
