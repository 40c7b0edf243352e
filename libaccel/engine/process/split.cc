// The arithmetic of dividing a list over processes, and its tensor form.

#include <string>

#include <ATen/core/Tensor.h>
#include <ATen/ops/cat.h>

#include <accel/split.h>

namespace accel {

SplitRange split_range(std::int64_t length, int num_processes, int process_index) {
  if (num_processes < 1 || process_index < 0 || process_index >= num_processes) {
    throw Error(
        ErrorCode::kInvalidArgument,
        "no process " + std::to_string(process_index) + " among " + std::to_string(num_processes));
  }
  const std::int64_t each = length / num_processes;
  const std::int64_t extras = length % num_processes;
  const std::int64_t begin = process_index * each + std::min<std::int64_t>(process_index, extras);
  return {begin, begin + each + (process_index < extras ? 1 : 0), each + (extras > 0 ? 1 : 0)};
}

at::Tensor split_for_process(const at::Tensor& inputs,
                             int num_processes,
                             int process_index,
                             const SplitOptions& options) {
  if (num_processes == 1) return inputs;
  const std::int64_t length = detail::length_for_split(inputs);
  const SplitRange range = split_range(length, num_processes, process_index);
  at::Tensor part = inputs.slice(0, range.begin, range.end);
  const std::int64_t missing = range.padded_length - part.size(0);
  if (!options.apply_padding || missing == 0 || length == 0) return part;
  auto shape = part.sizes().vec();
  shape[0] = missing;
  return at::cat({part, inputs.slice(0, length - 1, length).expand(shape)});
}

namespace detail {

std::int64_t length_for_split(const at::Tensor& inputs) {
  if (inputs.dim() == 0) {
    throw Error(ErrorCode::kInvalidArgument,
                "a 0-d tensor has no rows to split",
                "give split_between_processes a tensor with at least one dimension");
  }
  return inputs.size(0);
}

}  // namespace detail
}  // namespace accel
