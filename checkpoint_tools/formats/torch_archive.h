// TorchArchive: a file of torch.save(), planned before the bytes of its tensors are there.
//
//   pytorch_model/data.pkl        the object (pickle_writer.h)
//   pytorch_model/byteorder       little
//   pytorch_model/data/0, 1 ...   the bytes of each storage
//   pytorch_model/version         3
//
// Threads:  pure functions.
// Cost:     some 500 bytes of memory for each tensor.
// Source:   torch/serialization.py (_save), caffe2/serialize/inline_container.cc; tests/peer/merge_weights.py loads it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include <accel/result.h>
#include <accel/safetensors.h>

#include "checkpoint_tools/formats/zip_layout.h"

namespace accel::launcher {

struct TorchArchive {
  ZipLayout layout;
  std::vector<std::pair<std::size_t, std::string>>
      records;                    // entries that are no storages, with their bytes
  std::size_t first_storage = 0;  // the entry of storage 0; the others follow
  std::unordered_map<std::string, std::uint64_t> places;  // of each tensor, in bytes of the file
};

// `folder`: what the file is called within. `storage_bytes`: of storage 0, 1 ... that `pickle` names. Without places.
[[nodiscard]] TorchArchive plan_object_archive(const std::string& folder,
                                               std::string pickle,
                                               std::span<const std::uint64_t> storage_bytes);

// A dict of tensors. `aliases`: further names of tensors, as the metadata of safetensors files has them for tied weights; the two
// share their storage. An entry that names no tensor is left out, as "format" is.
// Errors  kUnsupported: a dtype that PyTorch has not (named); kInvalidArgument: a size beyond 63 bits.
[[nodiscard]] Result<TorchArchive> plan_torch_archive(
    std::span<const safetensors::TensorSpec> tensors,
    const std::map<std::string, std::string>& aliases);

}  // namespace accel::launcher
