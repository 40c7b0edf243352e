#include "libaccel/planning/operator_flops.h"

#include <cstddef>
#include <unordered_map>

#include <ATen/core/Tensor.h>

#include "libaccel/planning/lstm_rules.h"

namespace accel::planning {
namespace {

double extent_of(const at::Tensor& tensor, std::int64_t dimension) {
  return static_cast<double>(tensor.size(dimension));
}

// [..., rows, inner] x [..., inner, columns]
double product_flops(const at::Tensor& left, const at::Tensor& right) {
  return 2 * static_cast<double>(left.numel()) * extent_of(right, -1);
}

template <std::size_t first>
double matrix_product(Arguments arguments) {
  return product_flops(arguments[first].toTensor(), arguments[first + 1].toTensor());
}

// For each position of what the window moves over (the output; the input of a transposed one) the whole window.
double window_flops(const at::Tensor& positions, const at::Tensor& weight) {
  const auto channels = weight.dim() - 2;
  double count = positions.dim() == weight.dim() ? extent_of(positions, 0) : 1;
  for (std::int64_t i = 1; i <= channels; ++i) count *= extent_of(positions, -i);
  return 2 * count * static_cast<double>(weight.numel());
}

// The gradients of input and weight take as much as the forward each.
double convolution_backward_flops(Arguments arguments) {
  const at::Tensor& input = arguments[1].toTensor();
  const bool is_transposed = arguments[7].toBool();
  const auto wanted = arguments[10].toBoolList();
  return window_flops(is_transposed ? input : arguments[0].toTensor(), arguments[2].toTensor()) *
         ((wanted[0] ? 1 : 0) + (wanted[1] ? 1 : 0));
}

double attention_flops(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value) {
  const double scores =
      extent_of(query, 0) * extent_of(query, 1) * extent_of(query, 2) * extent_of(key, 2);
  return 2 * scores * (extent_of(query, 3) + extent_of(value, 3));
}

double attention_forward_flops(Arguments arguments) {
  return attention_flops(arguments[0].toTensor(), arguments[1].toTensor(), arguments[2].toTensor());
}
// Five products where the forward has two: the scores once more.
double attention_backward_flops(Arguments arguments) {
  return 2.5 *
         attention_flops(arguments[1].toTensor(), arguments[2].toTensor(), arguments[3].toTensor());
}

// A convolution's forward: its output's sizes are not among its arguments.
double convolution_flops(Arguments arguments) {
  const at::Tensor& input = arguments[0].toTensor();
  const at::Tensor& weight = arguments[1].toTensor();
  if (arguments[6].toBool()) return window_flops(input, weight);
  const Shape output = find_size_rule("aten::convolution")(arguments).results.front();
  double count = static_cast<double>(weight.numel()) * 2;
  const auto spatial = static_cast<std::size_t>(weight.dim() - 2);
  for (std::size_t i = output.sizes.size() - spatial; i < output.sizes.size(); ++i)
    count *= static_cast<double>(output.sizes[i]);
  return input.dim() == weight.dim() ? count * extent_of(input, 0) : count;
}

}  // namespace

FlopCount find_flop_count(std::string_view name) {
  static const std::unordered_map<std::string_view, FlopCount> all = {
      {"aten::mm", matrix_product<0>},
      {"aten::bmm", matrix_product<0>},
      {"aten::addmm", matrix_product<1>},
      {"aten::baddbmm", matrix_product<1>},
      {"aten::convolution", convolution_flops},
      {"aten::convolution_backward", convolution_backward_flops},
      {"aten::mkldnn_rnn_layer", lstm_flops},
      {"aten::mkldnn_rnn_layer_backward", lstm_backward_flops},
      {"aten::_scaled_dot_product_flash_attention_for_cpu", attention_forward_flops},
      {"aten::_scaled_dot_product_flash_attention_for_cpu_backward", attention_backward_flops},
  };
  const auto found = all.find(name);
  return found == all.end() ? nullptr : found->second;
}

}  // namespace accel::planning
