// TorchArchive: a file of torch.save() with a dict of tensors, planned before the tensors are there.
//
//   pytorch_model/data.pkl        the dict (state_dict_pickle.h)
//   pytorch_model/byteorder       little
//   pytorch_model/data/0, 1 ...   the bytes of each tensor
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
      records;  // entries that are no tensors, with their bytes
  std::unordered_map<std::string, std::uint64_t> places;  // of each tensor, in bytes of the file
};

// `aliases`: further names of tensors, as the metadata of safetensors files has them for tied weights; the two share their
// storage. An entry that names no tensor is left out, as "format" is.
// Errors  as state_dict_pickle().
[[nodiscard]] Result<TorchArchive> plan_torch_archive(
    std::span<const safetensors::TensorSpec> tensors,
    const std::map<std::string, std::string>& aliases);

}  // namespace accel::launcher
