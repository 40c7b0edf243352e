#include "libaccel/engine/pager/weight_file.h"

#include <algorithm>
#include <array>
#include <memory>
#include <utility>

#include <ATen/EmptyTensor.h>
#include <ATen/ops/empty.h>
#include <torch/nn/module.h>

#include <accel/error.h>

#include "libaccel/engine/pager/guard_memory.h"
#include "runtime/checkpoint/hashed_file.h"
#include "runtime/page_size.h"

namespace accel::pager {
namespace {

constexpr std::array<std::pair<at::ScalarType, std::string_view>, 17> kNames = {{
    {at::kBool, "bool"},
    {at::kByte, "uint8"},
    {at::kChar, "int8"},
    {at::kShort, "int16"},
    {at::kInt, "int32"},
    {at::kLong, "int64"},
    {at::kHalf, "float16"},
    {at::kBFloat16, "bfloat16"},
    {at::kFloat, "float32"},
    {at::kDouble, "float64"},
    {at::kComplexFloat, "complex64"},
    {at::kComplexDouble, "complex128"},
    {at::kFloat8_e4m3fn, "float8_e4m3fn"},
    {at::kFloat8_e5m2, "float8_e5m2"},
    {at::kFloat8_e4m3fnuz, "float8_e4m3fnuz"},
    {at::kFloat8_e5m2fnuz, "float8_e5m2fnuz"},
    {at::kFloat8_e8m0fnu, "float8_e8m0fnu"},
}};

using Range = GuardRange;

// Its address marks the storages.
void release_range(void* range) {
  delete static_cast<Range*>(range);
}

}  // namespace

std::optional<std::string_view> name_of_dtype(at::ScalarType dtype) {
  for (const auto& [type, name] : kNames)
    if (type == dtype) return name;
  return std::nullopt;
}

std::optional<at::ScalarType> dtype_of_name(std::string_view name) {
  for (const auto& [type, known] : kNames)
    if (known == name) return type;
  return std::nullopt;
}

at::Tensor tensor_in_file(const FilePlace& place,
                          at::ScalarType dtype,
                          at::IntArrayRef shape,
                          const std::string& name) {
  const std::size_t bytes =
      at::detail::computeStorageNbytesContiguous(shape, at::elementSize(dtype));
  const checkpoint::InputFile file(place.file);
  if (place.offset > file.size() || bytes > file.size() - place.offset) {
    throw Error(ErrorCode::kCheckpointIncomplete,
                place.file.string() + " has " + std::to_string(file.size()) + " bytes; " + name +
                    " takes " + std::to_string(bytes) + " from byte " +
                    std::to_string(place.offset) + " on",
                "write the weights again");
  }
  if (bytes == 0) return at::empty(shape, dtype);
  const std::size_t before = place.offset % page_bytes();
  auto range = std::make_unique<Range>(
      before + bytes, std::vector<GuardLabel>{{.offset = before, .bytes = bytes, .name = name}});
  range->map(file.fd(),
             static_cast<off_t>(place.offset - before),
             0,
             range->reserved_bytes(),
             Range::Access::kWeightFile);
  std::byte* const values = range->begin() + before;
  auto storage = c10::make_intrusive<c10::StorageImpl>(
      c10::StorageImpl::use_byte_size_t(),
      bytes,
      at::DataPtr(values, range.release(), &release_range, at::kCPU),
      /*allocator=*/nullptr,
      /*resizable=*/false);
  at::Tensor tensor =
      at::detail::make_tensor<c10::TensorImpl>(std::move(storage),
                                               c10::DispatchKeySet(c10::DispatchKey::CPU),
                                               c10::scalarTypeToTypeMeta(dtype));
  tensor.unsafeGetTensorImpl()->set_sizes_contiguous(shape);
  const bool is_aligned = reinterpret_cast<std::uintptr_t>(values) % at::elementSize(dtype) == 0;
  return is_aligned ? tensor : tensor.clone();
}

bool is_in_file(const at::Tensor& tensor) {
  // Not of the meta device: a storage without memory may refuse to be asked.
  return tensor.defined() && tensor.is_cpu() && tensor.has_storage() &&
         tensor.storage().data_ptr().get_deleter() == &release_range;
}

bool has_weights_in_files(const torch::nn::Module& module) {
  return std::ranges::any_of(module.parameters(), &is_in_file) ||
         std::ranges::any_of(module.buffers(), &is_in_file);
}

bool is_spread(const torch::nn::Module& module) {
  return has_weights_in_files(module) && !std::ranges::all_of(module.parameters(), &is_in_file);
}

}  // namespace accel::pager
