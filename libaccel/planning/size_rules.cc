#include "libaccel/planning/size_rules.h"

#include <algorithm>
#include <functional>
#include <numeric>
#include <unordered_map>
#include <utility>

#include <ATen/ExpandUtils.h>
#include <ATen/Parallel.h>
#include <ATen/core/Reduction.h>
#include <ATen/core/Tensor.h>
#include <c10/core/MemoryFormat.h>
#include <c10/core/WrapDimMinimal.h>

#include <accel/error.h>

#include "libaccel/planning/kernel_memory.h"
#include "libaccel/planning/lstm_rules.h"

namespace accel::planning {
namespace {

using Sizes = std::vector<std::int64_t>;

const at::Tensor& tensor(const c10::IValue& value) {
  return value.toTensor();
}

bool is_there(const c10::IValue& value) {
  return value.isTensor() && tensor(value).defined();
}

// Row-major, as kernels of the CPU make most results.
Shape row_major(const at::Tensor& like) {
  return {like.sizes().vec(), like.scalar_type()};
}
// As it lies: empty_like().
Shape like(const at::Tensor& tensor) {
  Shape shape = row_major(tensor);
  if (tensor.is_non_overlapping_and_dense()) shape.strides = tensor.strides().vec();
  return shape;
}
Shape absent() {
  return {.sizes = {0}, .is_defined = false};
}
Shape if_wanted(bool is_wanted, Shape shape) {
  return is_wanted ? std::move(shape) : absent();
}

std::int64_t element_bytes(c10::ScalarType dtype) {
  return static_cast<std::int64_t>(c10::elementSize(dtype));
}

std::int64_t product(c10::IntArrayRef sizes) {
  return std::accumulate(
      sizes.begin(), sizes.end(), std::int64_t{1}, std::multiplies<std::int64_t>());
}

// The dtype of averages beside an input of 16 bits, where the weights have 32.
c10::ScalarType statistics_dtype(const at::Tensor& input, const c10::IValue& weight) {
  return is_there(weight) ? tensor(weight).scalar_type() : input.scalar_type();
}

// ---- one result, as an argument lies ----

Sized like_first(Arguments arguments) {
  return {{like(tensor(arguments[0]))}};
}
Sized like_second(Arguments arguments) {
  return {{like(tensor(arguments[1]))}};
}

Shape broadcast(const at::Tensor& left, const at::Tensor& right, c10::ScalarType dtype) {
  return {at::infer_size(left.sizes(), right.sizes()), dtype};
}
Sized compared(Arguments arguments) {
  return {{broadcast(tensor(arguments[0]), tensor(arguments[1]), c10::ScalarType::Bool)}};
}
Sized inverted(Arguments arguments) {
  Shape shape = like(tensor(arguments[0]));
  shape.dtype = c10::ScalarType::Bool;
  return {{std::move(shape)}};
}

// ---- convolutions ----

// Where input or weight has channels last, results have. Of a batch of images alone.
Shape in_format_of(const at::Tensor& input, const at::Tensor& weight, Shape shape) {
  const bool is_last = input.suggest_memory_format() == at::MemoryFormat::ChannelsLast ||
                       weight.suggest_memory_format() == at::MemoryFormat::ChannelsLast;
  if (is_last && shape.sizes.size() == 4)
    shape.strides = c10::get_channels_last_strides_2d(shape.sizes);
  return shape;
}

std::int64_t at_dimension(const std::vector<std::int64_t>& values, std::size_t dimension) {
  return values.size() == 1 ? values[0] : values[dimension];
}

Sized convolution(Arguments arguments) {
  const at::Tensor& input = tensor(arguments[0]);
  const at::Tensor& weight = tensor(arguments[1]);
  const auto stride = arguments[3].toIntVector();
  const auto padding = arguments[4].toIntVector();
  const auto dilation = arguments[5].toIntVector();
  const bool is_transposed = arguments[6].toBool();
  const auto output_padding = arguments[7].toIntVector();
  const std::int64_t groups = arguments[8].toInt();
  const auto num_spatial = static_cast<std::size_t>(weight.dim() - 2);
  const bool is_batched = input.dim() == weight.dim();
  Shape output{{}, input.scalar_type()};
  if (is_batched) output.sizes.push_back(input.size(0));
  output.sizes.push_back(is_transposed ? weight.size(1) * groups : weight.size(0));
  for (std::size_t i = 0; i < num_spatial; ++i) {
    const auto dimension = static_cast<std::int64_t>(i);
    const std::int64_t in = input.size(dimension + (is_batched ? 2 : 1));
    const std::int64_t reach =
        at_dimension(dilation, i) * (weight.size(dimension + 2) - 1);  // of the window
    const std::int64_t padded = 2 * at_dimension(padding, i);
    const std::int64_t step = at_dimension(stride, i);
    output.sizes.push_back(is_transposed ? (in - 1) * step - padded + reach +
                                               at_dimension(output_padding, i) + 1
                                         : (in + padded - reach - 1) / step + 1);
  }
  return {{in_format_of(input, weight, std::move(output))}, convolution_scratch(arguments)};
}

Sized convolution_backward(Arguments arguments) {
  const at::Tensor& gradient = tensor(arguments[0]);
  const at::Tensor& input = tensor(arguments[1]);
  const at::Tensor& weight = tensor(arguments[2]);
  const auto wanted = arguments[10].toBoolList();
  return {{if_wanted(wanted[0], in_format_of(input, weight, row_major(input))),
           if_wanted(wanted[1], in_format_of(input, weight, row_major(weight))),
           if_wanted(wanted[2], {{gradient.size(1)}, gradient.scalar_type()})},
          convolution_backward_scratch(arguments)};
}

// ---- normalization ----

Sized layer_norm(Arguments arguments) {
  const at::Tensor& input = tensor(arguments[0]);
  const std::size_t num_normalized = arguments[1].toIntVector().size();
  Sizes statistics = input.sizes().vec();
  std::fill(statistics.end() - static_cast<std::ptrdiff_t>(num_normalized), statistics.end(), 1);
  const c10::ScalarType dtype = statistics_dtype(input, arguments[2]);
  return {{row_major(input), {statistics, dtype}, {statistics, dtype}}};
}

Sized layer_norm_backward(Arguments arguments) {
  const auto wanted = arguments[7].toBoolList();
  const auto normalized = arguments[2].toIntVector();
  const auto weights = [&](std::size_t argument) {
    return is_there(arguments[argument]) ? row_major(tensor(arguments[argument])) : absent();
  };
  Sized sized{{if_wanted(wanted[0], row_major(tensor(arguments[1]))),
               if_wanted(wanted[1], weights(5)),
               if_wanted(wanted[2], weights(6))}};
  // Sums of each thread.
  if (wanted[1] || wanted[2])
    sized.scratch = 2 * at::get_num_threads() * product(normalized) *
                    element_bytes(statistics_dtype(tensor(arguments[1]), arguments[5]));
  return sized;
}

Sized group_norm(Arguments arguments) {
  const at::Tensor& input = tensor(arguments[0]);
  const Sizes statistics = {arguments[3].toInt(), arguments[6].toInt()};
  const c10::ScalarType dtype = statistics_dtype(input, arguments[1]);
  return {{like(input), {statistics, dtype}, {statistics, dtype}}};
}

Sized group_norm_backward(Arguments arguments) {
  const auto wanted = arguments[9].toBoolList();
  const at::Tensor& input = tensor(arguments[1]);
  const std::int64_t channels = arguments[6].toInt();
  const c10::ScalarType dtype = statistics_dtype(input, arguments[4]);
  return {{if_wanted(wanted[0], like(input)),
           if_wanted(wanted[1], {{channels}, dtype}),
           if_wanted(wanted[2], {{channels}, dtype})},
          2 * arguments[5].toInt() * channels * element_bytes(dtype)};
}

Sized batch_norm(Arguments arguments) {
  const at::Tensor& input = tensor(arguments[0]);
  const std::int64_t channels = arguments[5].toBool() ? input.size(1) : 0;
  const c10::ScalarType dtype = statistics_dtype(input, arguments[1]);
  return {{like(input), {{channels}, dtype}, {{channels}, dtype}}};
}

Sized batch_norm_backward(Arguments arguments) {
  const auto wanted = arguments[9].toBoolList();
  const at::Tensor& input = tensor(arguments[1]);
  const c10::ScalarType dtype = statistics_dtype(input, arguments[2]);
  const Shape channels{{input.size(1)}, dtype};
  return {{if_wanted(wanted[0], like(input)),
           if_wanted(wanted[1], channels),
           if_wanted(wanted[2], channels)}};
}

// ---- attention ----

c10::ScalarType sum_dtype(c10::ScalarType dtype) {
  return c10::isReducedFloatingType(dtype) ? c10::ScalarType::Float : dtype;
}

// What lies in memory as [batch, positions, heads, channels], seen as [batch, heads, positions, channels].
Shape heads_inside(const at::Tensor& query, std::int64_t channels) {
  const std::int64_t heads = query.size(1);
  const std::int64_t positions = query.size(2);
  return {{query.size(0), heads, positions, channels},
          query.scalar_type(),
          {positions * heads * channels, channels, heads * channels, 1}};
}

// Blocks of scores of each thread; their sizes are those of the kernel (FlashAttentionKernel.cpp).
std::int64_t attention_blocks(const at::Tensor& query, const at::Tensor& key) {
  const std::int64_t positions = query.size(2);
  const std::int64_t rows =
      std::min<std::int64_t>(positions >= 768 ? 256 : (positions >= 192 ? 64 : 32), positions);
  const std::int64_t columns = std::min<std::int64_t>(512, key.size(2));
  return at::get_num_threads() * (rows * columns + 2 * rows + rows * query.size(3)) *
         element_bytes(sum_dtype(query.scalar_type()));
}

Sized attention(Arguments arguments) {
  const at::Tensor& query = tensor(arguments[0]);
  const std::int64_t heads = query.size(1);
  const std::int64_t positions = query.size(2);
  const Shape log_sums{{query.size(0), heads, positions},
                       sum_dtype(query.scalar_type()),
                       {positions * heads, 1, heads}};
  return {{heads_inside(query, tensor(arguments[2]).size(3)), log_sums},
          attention_blocks(query, tensor(arguments[1]))};
}

Sized attention_backward(Arguments arguments) {
  const auto gradient = [&](std::size_t argument) {
    const at::Tensor& of = tensor(arguments[argument]);
    return heads_inside(of, of.size(3));
  };
  return {{gradient(1), gradient(2), gradient(3)},
          2 * attention_blocks(tensor(arguments[1]), tensor(arguments[2]))};
}

// ---- tables, choices, reductions ----

Sized index_select(Arguments arguments) {
  const at::Tensor& input = tensor(arguments[0]);
  Shape shape = row_major(input);
  if (input.dim() > 0) {
    const auto dimension =
        static_cast<std::size_t>(c10::maybe_wrap_dim(arguments[1].toInt(), input.dim()));
    shape.sizes[dimension] = tensor(arguments[2]).numel();
  }
  return {{std::move(shape)}};
}

Sized embedding_backward(Arguments arguments) {
  const at::Tensor& gradient = tensor(arguments[0]);
  return {{{{arguments[2].toInt(), gradient.size(-1)}, gradient.scalar_type()}}};
}

// Of bags, whose numbers are in tensors, as those of the kernel: which rows are whose, how many, and which was the largest.
Sized embedding_bag(Arguments arguments) {
  const at::Tensor& weight = tensor(arguments[0]);
  const at::Tensor& indices = tensor(arguments[1]);
  const std::int64_t bags = tensor(arguments[2]).numel() - (arguments[7].toBool() ? 1 : 0);
  const std::int64_t mode = arguments[4].toInt();
  constexpr std::int64_t kSum = 0;
  constexpr std::int64_t kMax = 2;
  const c10::ScalarType dtype = indices.scalar_type();
  Sizes largest = {bags};
  if (mode == kMax) largest.push_back(weight.size(1));
  return {{{{bags, weight.size(1)}, weight.scalar_type()},
           {{mode == kSum ? 0 : indices.numel()}, dtype},
           {{bags}, dtype},
           {std::move(largest), dtype}}};
}
Sized embedding_bag_backward(Arguments arguments) {
  if (arguments[9].toBool()) {
    throw Error(ErrorCode::kUnsupported,
                "a step cannot be planned without its values: the sparse gradient of an embedding "
                "has as many rows as were different",
                "plan with sparse = false, which takes more");
  }
  const at::Tensor& gradient = tensor(arguments[0]);
  constexpr std::int64_t kLists = 5;  // sorted, their order, counts
  return {{{{arguments[6].toInt(), gradient.size(1)}, gradient.scalar_type()}},
          kLists * static_cast<std::int64_t>(tensor(arguments[1]).nbytes())};
}

Sized where(Arguments arguments) {
  const at::Tensor& first = tensor(arguments[1]);
  const at::Tensor& second = tensor(arguments[2]);
  return {
      {{at::infer_size(tensor(arguments[0]).sizes(), at::infer_size(first.sizes(), second.sizes())),
        c10::promoteTypes(first.scalar_type(), second.scalar_type())}}};
}

Shape without_dimensions(const at::Tensor& input, const c10::IValue& dimensions, bool keeps) {
  std::vector<bool> is_gone(static_cast<std::size_t>(input.dim()), true);
  if (!dimensions.isNone() && !dimensions.toIntVector().empty()) {
    is_gone.assign(is_gone.size(), false);
    for (const std::int64_t one : dimensions.toIntVector())
      is_gone[static_cast<std::size_t>(c10::maybe_wrap_dim(one, input.dim()))] = true;
  }
  Shape shape{{}, input.scalar_type()};
  for (std::size_t i = 0; i < is_gone.size(); ++i) {
    if (!is_gone[i])
      shape.sizes.push_back(input.size(static_cast<std::int64_t>(i)));
    else if (keeps)
      shape.sizes.push_back(1);
  }
  return shape;
}

Sized variance(Arguments arguments) {
  return {{without_dimensions(tensor(arguments[0]), arguments[1], arguments[3].toBool())}};
}
Sized variance_and_mean(Arguments arguments) {
  const Shape shape = without_dimensions(tensor(arguments[0]), arguments[1], arguments[3].toBool());
  return {{shape, shape}};
}

Sized adaptive_pool(Arguments arguments) {
  const at::Tensor& input = tensor(arguments[0]);
  const auto output = arguments[1].toIntVector();
  Shape shape = row_major(input);
  std::copy(
      output.begin(), output.end(), shape.sizes.end() - static_cast<std::ptrdiff_t>(output.size()));
  return {{std::move(shape)}};
}

// ---- losses ----

Shape loss(const at::Tensor& rows, c10::ScalarType dtype, std::int64_t reduction) {
  return {reduction == at::Reduction::None ? rows.sizes().vec() : Sizes{}, dtype};
}

// Where it is reduced its kernel makes one for each element, and makes the result of one of these.
Sized loss_of_elements(const at::Tensor& input, std::int64_t reduction) {
  Shape result = loss(input, input.scalar_type(), reduction);
  if (reduction == at::Reduction::None) return {{std::move(result)}};
  result.least_bytes = static_cast<std::int64_t>(input.nbytes());
  return {{std::move(result)}, static_cast<std::int64_t>(input.nbytes())};
}

Sized nll_loss2d(Arguments arguments) {
  const c10::ScalarType dtype = tensor(arguments[0]).scalar_type();
  return {{loss(tensor(arguments[1]), dtype, arguments[3].toInt()), {{}, dtype}}};
}
Sized binary_cross_entropy(Arguments arguments) {
  return loss_of_elements(tensor(arguments[0]), arguments[3].toInt());
}
Sized difference_loss(Arguments arguments) {
  return loss_of_elements(tensor(arguments[0]), arguments[2].toInt());
}

Sized log_sigmoid(Arguments arguments) {
  const at::Tensor& input = tensor(arguments[0]);
  return {{like(input), like(input)}};
}

Sized weight_norm(Arguments arguments) {
  return {{like(tensor(arguments[0])), like(tensor(arguments[1]))}};
}
Sized weight_norm_backward(Arguments arguments) {
  return {{like(tensor(arguments[1])), like(tensor(arguments[2]))}};
}

Sized dropout(Arguments arguments) {
  const at::Tensor& input = tensor(arguments[0]);
  Shape mask = like(input);
  mask.dtype = c10::ScalarType::Bool;
  return {{like(input), std::move(mask)}};
}

// clang-format off
const std::unordered_map<std::string_view, SizeRule>& rules() {
  static const std::unordered_map<std::string_view, SizeRule> all = {
      {"aten::_adaptive_avg_pool2d", adaptive_pool},
      {"aten::_adaptive_avg_pool2d_backward", like_second},
      {"aten::_embedding_bag", embedding_bag},
      {"aten::_embedding_bag_backward", embedding_bag_backward},
      {"aten::_prelu_kernel", like_first},
      {"aten::_scaled_dot_product_flash_attention_for_cpu", attention},
      {"aten::_scaled_dot_product_flash_attention_for_cpu_backward", attention_backward},
      {"aten::_weight_norm_interface", weight_norm},
      {"aten::_weight_norm_interface_backward", weight_norm_backward},
      {"aten::abs", like_first},
      {"aten::binary_cross_entropy", binary_cross_entropy},
      {"aten::binary_cross_entropy_backward", like_second},
      {"aten::channel_shuffle", like_first},
      {"aten::convolution", convolution},
      {"aten::convolution_backward", convolution_backward},
      {"aten::embedding_dense_backward", embedding_backward},
      {"aten::flip", like_first},
      {"aten::hardswish", like_first},
      {"aten::hardswish_backward", like_second},
      {"aten::hardtanh", like_first},
      {"aten::hardtanh_backward", like_second},
      {"aten::huber_loss", difference_loss},
      {"aten::index_select", index_select},
      {"aten::log_sigmoid_backward", like_second},
      {"aten::log_sigmoid_forward", log_sigmoid},
      {"aten::logical_and", compared},
      {"aten::logical_not", inverted},
      {"aten::logical_or", compared},
      {"aten::logical_xor", compared},
      {"aten::mkldnn_rnn_layer", lstm_layer},
      {"aten::mkldnn_rnn_layer_backward", lstm_layer_backward},
      {"aten::mse_loss", difference_loss},
      {"aten::mse_loss_backward", like_second},
      {"aten::nan_to_num", like_first},
      {"aten::native_batch_norm", batch_norm},
      {"aten::native_batch_norm_backward", batch_norm_backward},
      {"aten::native_dropout", dropout},
      {"aten::native_dropout_backward", like_first},
      {"aten::native_group_norm", group_norm},
      {"aten::native_group_norm_backward", group_norm_backward},
      {"aten::native_layer_norm", layer_norm},
      {"aten::native_layer_norm_backward", layer_norm_backward},
      {"aten::nll_loss2d_backward", like_second},
      {"aten::nll_loss2d_forward", nll_loss2d},
      {"aten::relu", like_first},
      {"aten::roll", like_first},
      {"aten::smooth_l1_loss", difference_loss},
      {"aten::soft_margin_loss", difference_loss},
      {"aten::std.correction", variance},
      {"aten::std_mean.correction", variance_and_mean},
      {"aten::var.correction", variance},
      {"aten::var_mean.correction", variance_and_mean},
      {"aten::where.self", where},
  };
  return all;
}
// clang-format on

}  // namespace

SizeRule find_size_rule(std::string_view name) {
  const auto found = rules().find(name);
  return found == rules().end() ? nullptr : found->second;
}

}  // namespace accel::planning
