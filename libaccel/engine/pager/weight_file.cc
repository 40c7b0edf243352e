#include "libaccel/engine/pager/weight_file.h"

#include <algorithm>
#include <array>
#include <memory>
#include <utility>
#include <vector>

#include <ATen/EmptyTensor.h>
#include <ATen/ops/empty.h>
#include <torch/nn/module.h>

#include <accel/error.h>

#include "libaccel/engine/pager/guard_memory.h"
#include "libaccel/engine/pager/read_ahead.h"
#include "libaccel/interception/parameter_operators.h"
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

struct Range : GuardRange {
  Range(std::size_t bytes, std::size_t before, const std::string& weight)
      : GuardRange(bytes, {{.offset = before, .bytes = bytes - before, .name = weight}}),
        name(weight) {}
  const std::string name;
};

// Its address marks the storages.
void release_range(void* range) {
  delete static_cast<Range*>(range);
}

const Range* range_of(const at::Tensor& tensor) {
  const at::DataPtr& pointer = tensor.storage().data_ptr();
  return pointer.get_deleter() == &release_range ? static_cast<const Range*>(pointer.get_context())
                                                 : nullptr;
}

bool reads_rows(std::string_view operation) {
  return operation == "aten::embedding" || operation == "aten::index_select" ||
         operation == "aten::select" || operation == "aten::index";
}

// Of a weight that is read ahead.
class WeightStorage final : public interception::ParameterStorage {
 public:
  WeightStorage(at::Storage mapping,
                std::string name,
                std::shared_ptr<ReadAhead> reader,
                std::size_t weight)
      : mapping_(std::move(mapping)),
        name_(std::move(name)),
        reader_(std::move(reader)),
        weight_(weight) {}
  ~WeightStorage() override { reader_->retire(weight_); }
  WeightStorage(const WeightStorage&) = delete;
  WeightStorage& operator=(const WeightStorage&) = delete;

  void before(interception::OperatorRun& run,
              const c10::TensorImpl& tensor,
              bool is_written) const override {
    if (is_written) {
      throw Error(ErrorCode::kUnsupported,
                  std::string(run.name()) + " would write to the parameter " + name_of(tensor) +
                      ", which lies in a file",
                  "leave disk out of the device map of a model that is to be changed");
    }
    reads_rows(run.name()) ? reader_->use_rows(weight_) : reader_->use(weight_);
  }
  [[nodiscard]] std::string name_of(const c10::TensorImpl&) const override { return name_; }

 private:
  at::Storage mapping_;
  std::string name_;
  std::shared_ptr<ReadAhead> reader_;
  std::size_t weight_;
};

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
  auto range = std::make_unique<Range>(before + bytes, before, name);
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
  if (!tensor.defined() || !tensor.is_cpu() || !tensor.has_storage()) return false;
  if (tensor.storage().data_ptr().get_deleter() == &release_range) return true;
  const auto* const owner = interception::owner_of(*tensor.unsafeGetTensorImpl());
  return dynamic_cast<const WeightStorage*>(owner) != nullptr;
}

std::vector<at::Tensor> read_ahead(std::span<const at::Tensor> weights, std::size_t max_bytes) {
  std::vector<MappedWeight> mapped;
  for (const at::Tensor& weight : weights)
    if (const Range* const range = range_of(weight))
      mapped.push_back({range->begin(), range->reserved_bytes()});
  const auto reader = std::make_shared<ReadAhead>(std::move(mapped), max_bytes);
  std::vector<at::Tensor> tensors;
  std::size_t index = 0;
  for (const at::Tensor& weight : weights) {
    const Range* const range = range_of(weight);
    if (range == nullptr) {
      tensors.push_back(weight);
      continue;
    }
    const at::Storage& mapping = weight.storage();
    auto owner = std::make_unique<WeightStorage>(mapping, range->name, reader, index++);
    at::Storage storage(at::Storage::use_byte_size_t(),
                        mapping.nbytes(),
                        interception::owned_pointer(mapping.mutable_data(), std::move(owner)),
                        /*allocator=*/nullptr,
                        /*resizable=*/false);
    tensors.push_back(
        interception::make_owned(weight, std::move(storage), weight.scalar_type(), 0));
  }
  return tensors;
}

bool has_weights_in_files(const torch::nn::Module& module) {
  return std::ranges::any_of(module.parameters(), &is_in_file) ||
         std::ranges::any_of(module.buffers(), &is_in_file);
}

bool is_spread(const torch::nn::Module& module) {
  return has_weights_in_files(module) && !std::ranges::all_of(module.parameters(), &is_in_file);
}

}  // namespace accel::pager
