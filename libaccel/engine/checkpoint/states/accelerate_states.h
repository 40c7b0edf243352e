// AccelerateStates: the states of objects as HF Accelerate's save_state() has them in its files, and back.
//
//   optimizer.bin         {"state": {0: {"exp_avg": tensor, "step": tensor, ...}}, "param_groups": [{"lr": ..., "params": [0]}]};
//                         of FSDP by the names of parameters, in place of numbers
//   scheduler.bin, scaler.pt, custom_checkpoint_0.pkl     one dict: values and tensors of a StateDict
//   random_states_0.pkl   {"step": 3, "random_state": ..., "numpy_random_seed": ..., "torch_manual_seed": bytes}
//
// PyTorch counts parameters through all groups; here they go by their names, and so the order of a group is what ties the two. With
// FSDP the names are those within the model of the same number as the optimizer.
//
// Threads:  the thread that trains.
// Source:   accelerate/checkpointing.py, torch/optim/optimizer.py; tests/peer/accelerate_checkpoints.py.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <ATen/core/ivalue.h>

#include <accel/state_dict.h>

#include "libaccel/engine/checkpoint/files/python_file.h"
#include "libaccel/engine/checkpoint/states/optimizer_state.h"
#include "libaccel/engine/checkpoint/states/python_optimizer.h"

namespace accel::checkpoint {

// Errors of both  throws kUnsupported for LBFGS and for classes of the user's own; kCheckpointMismatch for an optimizer of another
// class or with other groups than the file's, and for options that LibTorch's has not ("maximize").
enum class ParameterKeys { kNumbers, kNames };
[[nodiscard]] c10::IValue accelerate_optimizer(torch::optim::Optimizer& optimizer,
                                               const ParameterNames& names,
                                               ParameterKeys keys = ParameterKeys::kNumbers);
// The same of what was saved of it already.
[[nodiscard]] c10::IValue accelerate_optimizer(const torch::optim::Optimizer& optimizer,
                                               const SavedOptimizer& saved,
                                               ParameterKeys keys);
// Tensors of `file` that are not read yet stay so: they are those of file.stored.
[[nodiscard]] SavedOptimizer read_accelerate_optimizer(const PythonOptimizer& file,
                                                       torch::optim::Optimizer& optimizer,
                                                       const ParameterNames& names);

[[nodiscard]] c10::IValue accelerate_state(const StateDict& state);
// Of a learning rate scheduler: PyTorch wants its own keys too.
[[nodiscard]] c10::IValue accelerate_scheduler(const Stateful& scheduler);
// `left_out`: names of what a StateDict cannot hold. Errors  throws kCheckpointMismatch: it is no dict; those of PythonFile.
[[nodiscard]] StateDict read_accelerate_state(PythonFile& file, std::vector<std::string>& left_out);

// Python's and NumPy's generators, which there are none of here, begin as of the seed of the CPU's generator.
[[nodiscard]] c10::IValue accelerate_random_states(const StateDict& state);
// Leaves theirs out.
[[nodiscard]] StateDict read_accelerate_random_states(PythonFile& file);
// What such a file names beside tensors.
[[nodiscard]] std::span<const std::string_view> names_in_random_states() noexcept;

}  // namespace accel::checkpoint
