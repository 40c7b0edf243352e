// Batch: operations on all tensors of a batch of nested data (see nested.h), without the other
// ranks.
//
// Threads:  no state. Cost: views where possible; send_to_device and convert_to_fp32 copy what must
// change.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include <accel/export.h>
#include <accel/nested.h>

namespace accel {

// The shape and the element type of a tensor, which may be on another rank.
struct TensorInformation {
  std::vector<std::int64_t> shape;
  at::ScalarType dtype = at::kFloat;

  friend bool operator==(const TensorInformation&, const TensorInformation&) = default;
};

namespace detail {

ACCEL_EXPORT std::int64_t rows_of(const at::Tensor& tensor);
ACCEL_EXPORT at::Tensor slice_rows(const at::Tensor& tensor, std::int64_t begin, std::int64_t end);
ACCEL_EXPORT at::Tensor to_device(const at::Tensor& tensor, at::Device device, bool non_blocking);
ACCEL_EXPORT at::Tensor to_fp32(const at::Tensor& tensor);
ACCEL_EXPORT at::Tensor pinned(const at::Tensor& tensor);
ACCEL_EXPORT TensorInformation information_of(const at::Tensor& tensor);
ACCEL_EXPORT at::Tensor empty_tensor(const TensorInformation& information);
[[noreturn]] ACCEL_EXPORT void throw_no_batch();

}  // namespace detail

// The rows of the first tensor; std::nullopt when there is no tensor.
template <typename T>
std::optional<std::int64_t> ignorant_find_batch_size(const T& data) {
  std::optional<std::int64_t> size;
  for_each_leaf<at::Tensor>(data, [&](const at::Tensor& tensor) {
    if (!size && tensor.defined() && tensor.dim() > 0) size = detail::rows_of(tensor);
  });
  return size;
}

// Errors  kInvalidArgument when there is no tensor with at least one dimension.
template <typename T>
std::int64_t find_batch_size(const T& data) {
  const auto size = ignorant_find_batch_size(data);
  if (!size) detail::throw_no_batch();
  return *size;
}

// The device of the first tensor; std::nullopt when there is none.
template <typename T>
std::optional<at::Device> find_device(const T& data) {
  std::optional<at::Device> device;
  for_each_leaf<at::Tensor>(data, [&](const at::Tensor& tensor) {
    if (!device && tensor.defined()) device = tensor.device();
  });
  return device;
}

// The structure with TensorInformation in place of the tensors, and back: uninitialised tensors.
template <typename T>
auto get_data_structure(const T& data) {
  return map_leaves<at::Tensor>(data, &detail::information_of);
}
template <typename T>
auto initialize_tensors(const T& structure) {
  return map_leaves<TensorInformation>(structure, &detail::empty_tensor);
}

// Rows begin..end of every tensor (views); beyond the end as in Python.
template <typename T>
T slice_tensors(const T& data, std::int64_t begin, std::int64_t end) {
  return recursively_apply(
      data, [=](const at::Tensor& tensor) { return detail::slice_rows(tensor, begin, end); });
}

struct SendOptions {
  bool non_blocking =
      false;  // true: the copy may still run when the call returns (pinned memory to a GPU)
  std::vector<std::string> skip_keys =
      {};  // entries of maps with string keys that stay where they are
};

namespace detail {

struct DeviceSender {
  at::Device device;
  const SendOptions& options;

  at::Tensor operator()(const at::Tensor& tensor) const {
    return tensor.defined() ? to_device(tensor, device, options.non_blocking) : tensor;
  }
  [[nodiscard]] bool skips(std::string_view key) const {
    const auto& keys = options.skip_keys;
    return std::find(keys.begin(), keys.end(), key) != keys.end();
  }
};

}  // namespace detail

// Every tensor on `device`.
template <typename T>
T send_to_device(const T& data, at::Device device, const SendOptions& options = {}) {
  return map_leaves<at::Tensor>(data, detail::DeviceSender{device, options});
}

// Every tensor in page-locked memory, from which copies to a GPU need not block; unchanged where there is no CUDA device.
template <typename T>
T pin_memory(const T& data) {
  return recursively_apply(data, [](const at::Tensor& tensor) { return detail::pinned(tensor); });
}

// fp16 and bf16 tensors as fp32; others unchanged.
template <typename T>
T convert_to_fp32(const T& data) {
  return recursively_apply(data, [](const at::Tensor& tensor) { return detail::to_fp32(tensor); });
}

// A callable that calls `forward` and returns its result, with fp16 and bf16 tensors as fp32. Prepared models do so by
// themselves.
template <typename Forward>
[[nodiscard]] auto convert_outputs_to_fp32(Forward forward) {
  return [forward = std::move(forward)](auto&&... args) mutable {
    return convert_to_fp32(forward(std::forward<decltype(args)>(args)...));
  };
}

}  // namespace accel
