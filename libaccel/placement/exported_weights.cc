#include "libaccel/placement/exported_weights.h"

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include <accel/error.h>

#include "libaccel/engine/pager/weight_file.h"
#include "libaccel/exported/archive.h"
#include "libaccel/exported/constants.h"
#include "libaccel/exported/stored_tensors.h"
#include "runtime/printable.h"

namespace accel::placement {
namespace {

namespace fs = std::filesystem;

// In the order of values, without gaps.
bool is_row_major(const exported::Payload& payload) {
  std::int64_t expected = 1;
  for (std::size_t i = payload.sizes.size(); i-- > 0;) {
    if (payload.sizes[i] == 0) return false;  // no byte that could be mapped
    if (payload.sizes[i] != 1 && payload.strides[i] != expected) return false;
    expected *= payload.sizes[i];
  }
  return true;
}

at::Tensor tensor_of(const fs::path& file, const exported::Payload& payload) {
  const auto dtype = exported::scalar_type_of(payload.dtype);
  if (!payload.has_bytes || !dtype || !is_row_major(payload))
    return exported::read_tensors({payload}).at(payload.name);
  const std::uint64_t offset =
      static_cast<std::uint64_t>(payload.offset) * exported::width_of_dtype(payload.dtype);
  return pager::tensor_in_file(
      {file, payload.bytes.begin + offset}, *dtype, payload.sizes, payload.name);
}

}  // namespace

bool is_exported_file(const fs::path& file) {
  return file.extension() == ".pt2";
}

safetensors::TensorMap tensors_of_exported(const fs::path& file) {
  safetensors::TensorMap tensors;
  const exported::Archive archive(file);
  const std::vector<std::string>& models = archive.models();
  // The one that ExportedModel takes its weights from.
  const bool has_default = std::ranges::count(models, "model") > 0;
  if (!has_default && models.size() > 1) {
    throw Error(ErrorCode::kInvalidArgument,
                printable(file.string()) + " has several graphs, and none is called 'model'",
                "load the weights from a safetensors file");
  }
  for (const auto& payload : archive.weights(has_default ? "model" : models.front()))
    tensors[payload.name] = tensor_of(file, payload);
  return tensors;
}

}  // namespace accel::placement
