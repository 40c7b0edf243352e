#include "libaccel/exported/stored_tensors.h"

#include <algorithm>
#include <sstream>

#include <ATen/ops/empty.h>

#include <accel/error.h>
#include <accel/result.h>
#include <accel/safetensors_file.h>

#include "libaccel/exported/constants.h"
#include "libaccel/exported/graph_reader.h"
#include "runtime/printable.h"
#include "runtime/text/joined.h"

namespace accel::exported {
namespace {

at::ScalarType dtype_of(const Payload& payload) {
  const auto dtype = scalar_type_of(payload.dtype);
  if (!dtype) throw damaged_export("the dtype of " + printable(payload.name) + " is not known");
  return *dtype;
}

bool is_whole_storage(const Payload& payload) {
  std::int64_t expected = 1;
  for (std::size_t i = payload.sizes.size(); i-- > 0;) {
    if (payload.sizes[i] != 1 && payload.strides[i] != expected) return false;
    expected *= payload.sizes[i];
  }
  const std::uint64_t width = width_of_dtype(payload.dtype);
  return payload.offset == 0 && static_cast<std::uint64_t>(expected) * width == payload.bytes.size;
}

void fill(const at::Tensor& tensor, const Payload& payload) {
  if (payload.bytes.size == 0) return;
  or_throw(payload.bytes.read(
      0,
      {static_cast<std::byte*>(tensor.data_ptr()), static_cast<std::size_t>(payload.bytes.size)}));
}

std::int64_t stored_elements(const Payload& payload) {
  return static_cast<std::int64_t>(payload.bytes.size / width_of_dtype(payload.dtype));
}

// Within empty weights parameters stay so; everything else gets memory when their scope ends, and then these values.
at::Tensor empty_tensor(const Payload& payload) {
  const at::ScalarType dtype = dtype_of(payload);
  at::Tensor tensor = at::empty(payload.sizes, dtype);
  if (payload.is_parameter || payload.bytes.size == 0) return tensor;
  const at::Tensor values =
      at::empty({stored_elements(payload)}, at::device(at::kCPU).dtype(dtype));
  fill(values, payload);
  tensor.copy_(values.as_strided(payload.sizes, payload.strides, payload.offset));
  return tensor;
}

bool makes_empty_tensors() {
  return at::empty({0}, at::kByte).is_meta();
}

// The same for names of one tensor.
std::string storage_key(const Payload& payload) {
  std::ostringstream key;
  key << payload.path << ' ' << payload.dtype << ' ' << payload.offset;
  for (const std::int64_t size : payload.sizes) key << ' ' << size;
  for (const std::int64_t stride : payload.strides) key << ' ' << stride;
  return key.str();
}

class StorageReader {
 public:
  at::Tensor tensor_of(const Payload& payload) {
    at::Tensor& tensor = tensors_[storage_key(payload)];
    if (!tensor.defined()) tensor = read(payload);
    return tensor;
  }

 private:
  at::Tensor read(const Payload& payload) {
    if (makes_empty_tensors()) return empty_tensor(payload);
    const at::ScalarType dtype = dtype_of(payload);
    const auto known = storages_.find(payload.path);
    if (known == storages_.end() && is_whole_storage(payload)) {
      at::Tensor tensor = at::empty(payload.sizes, dtype);
      fill(tensor, payload);
      storages_.emplace(payload.path, tensor);
      return tensor;
    }
    at::Tensor& base = known == storages_.end() ? storages_[payload.path] : known->second;
    if (!base.defined()) {
      base = at::empty({stored_elements(payload)}, dtype);
      fill(base, payload);
    }
    return at::empty({0}, at::TensorOptions().dtype(dtype))
        .set_(base.storage(), payload.offset, payload.sizes, payload.strides);
  }

  std::map<std::string, at::Tensor> storages_;
  std::map<std::string, at::Tensor> tensors_;
};

// Whether names of one tensor can be told. What was exported under FakeTensorMode has one storage for all; what `accel export`
// leaves to a file beside it has one for each tensor.
bool has_storages(const std::vector<Payload>& payloads) {
  return std::ranges::any_of(payloads, [&](const Payload& payload) {
    return payload.has_bytes || payload.path != payloads.front().path;
  });
}

std::string shape_text(at::IntArrayRef sizes) {
  std::ostringstream text;
  text << sizes;
  return text.str();
}

}  // namespace

TensorsByName read_tensors(const std::vector<Payload>& payloads) {
  TensorsByName tensors;
  StorageReader reader;
  std::vector<std::string> empty;
  for (const Payload& payload : payloads) {
    if (!payload.has_bytes) empty.push_back(printable(payload.name));
    if (payload.has_bytes) tensors.emplace(payload.name, reader.tensor_of(payload));
  }
  if (!empty.empty())
    throw Error(ErrorCode::kSafetensorsMismatch,
                "the exported model was written without the values of " + joined(empty, ", "),
                "give a safetensors file with them in ExportedModelOptions::weights");
  return tensors;
}

TensorsByName read_tensors(const std::vector<Payload>& payloads,
                           const std::filesystem::path& weights) {
  const safetensors::TensorMap given = safetensors::load_file(weights);
  const bool are_ties_known = has_storages(payloads);
  const auto key_of = [&](const Payload& payload) {
    return are_ties_known ? storage_key(payload) : payload.name;
  };
  std::map<std::string, at::Tensor> by_storage;  // of names that are tied
  for (const Payload& payload : payloads) {
    const auto found = given.find(payload.name);
    if (found != given.end()) by_storage.try_emplace(key_of(payload), found->second);
  }
  TensorsByName tensors;
  std::vector<std::string> missing;
  std::vector<std::string> other;
  std::vector<Payload> kept;
  for (const Payload& payload : payloads) {
    const auto found = by_storage.find(key_of(payload));
    if (found == by_storage.end()) {
      if (payload.is_parameter || !payload.has_bytes) {
        missing.push_back(printable(payload.name));
      } else {
        kept.push_back(payload);
      }
      continue;
    }
    const at::Tensor& tensor = found->second;
    if (tensor.sizes() != at::IntArrayRef(payload.sizes)) {
      other.push_back(printable(payload.name) + " is " + shape_text(tensor.sizes()) +
                      ", expected " + shape_text(payload.sizes));
    } else {
      tensors.emplace(payload.name, tensor);
    }
  }
  if (!missing.empty() || !other.empty())
    throw Error(
        ErrorCode::kSafetensorsMismatch,
        printable(weights.string()) + " does not have the weights of the exported model" +
            (missing.empty() ? "" : "; it lacks " + joined(missing, ", ")) +
            (other.empty() ? "" : "; " + joined(other, ", ")),
        "give the weights of the model that was exported, under the names that it has in Python");
  tensors.merge(read_tensors(kept));
  return tensors;
}

}  // namespace accel::exported
