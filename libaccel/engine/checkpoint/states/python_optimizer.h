// PythonOptimizer: the state dict of an optimizer of PyTorch, whatever it was saved in.
//
//   optimizer.bin   one pickle: parameters go by their numbers through all groups, or by their names, as FSDP saves them
//   optimizer_0/    a folder of torch.distributed.checkpoint, by names (FSDP with SHARDED_STATE_DICT)
//
// Threads:  one at a time.
// Cost:     of a pickle all tensors are read; of a folder what stands in groups and tensors of a single value, such as "step".
// Source:   torch/optim/optimizer.py, torch/distributed/checkpoint/state_dict.py; tests/peer/fsdp_checkpoints.py.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <unordered_map>
#include <variant>
#include <vector>

#include <ATen/core/Tensor.h>

#include "checkpoint_tools/merge/distcp_metadata.h"
#include "libaccel/engine/checkpoint/files/python_file.h"

namespace accel::checkpoint {

struct PythonOptimizer {
  using Parameter = std::variant<std::int64_t, std::string>;
  // None, or what no optimizer of LibTorch has a place for; a flag; a number; numbers ("betas").
  using Option = std::variant<std::monostate, bool, double, std::vector<double>>;
  // Those of a folder that are not read yet are on the meta device: `stored` says where they are.
  using Field = std::variant<double, at::Tensor>;
  struct Group {
    std::map<std::string, Option> options;
    std::vector<Parameter> params;
  };

  std::filesystem::path path;  // for messages
  std::vector<Group> groups;
  std::map<Parameter, std::map<std::string, Field>> states;
  std::unordered_map<const c10::TensorImpl*, std::size_t>
      stored;  // numbers of the folder's tensors
};

// Errors of both  throws kCheckpointMismatch: it is no such dict; those of PythonFile, and of distcp_files.h.
[[nodiscard]] PythonOptimizer read_python_optimizer(PythonFile& file);
[[nodiscard]] PythonOptimizer read_distcp_optimizer(const std::filesystem::path& folder,
                                                    const launcher::DistcpMetadata& metadata);

// That the file at `path` is no optimizer's, or not that of the one it is loaded into. `what`: "has no param_groups".
[[noreturn]] void throw_optimizer_mismatch(const std::filesystem::path& path,
                                           const std::string& what);

}  // namespace accel::checkpoint
