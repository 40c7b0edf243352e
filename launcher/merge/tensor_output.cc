#include "launcher/merge/tensor_output.h"

#include <utility>

#include <accel/result.h>

namespace accel::launcher {

TensorOutput::TensorOutput(checkpoint::FileSystem& file_system,
                           const std::filesystem::path& path,
                           std::vector<safetensors::TensorSpec> tensors,
                           std::map<std::string, std::string> metadata)
    : TensorOutput(file_system,
                   path,
                   or_throw(safetensors::plan_layout(std::move(tensors), std::move(metadata)))) {}

TensorOutput::TensorOutput(checkpoint::FileSystem& file_system,
                           const std::filesystem::path& path,
                           const safetensors::Layout& layout)
    : file_(file_system, path, layout.header.data_offset + layout.header.data_bytes) {
  for (const safetensors::TensorInfo& tensor : layout.header.tensors)
    places_[tensor.name] = layout.header.data_offset + tensor.begin;
  file_.write(0, std::as_bytes(std::span(layout.bytes)));
}

}  // namespace accel::launcher
