// OptimizerState: a torch::optim optimizer as named tensors and JSON, and back.
//
// LibTorch keys an optimizer's state by the address of a tensor's implementation, which no other
// process shares. Here it is keyed by the name of the parameter, so a checkpoint fits any process
// that builds the same model:
//
//   tensors   <parameter>.<field>         layer.weight.exp_avg
//   JSON      {"type": "AdamW",
//              "state": {"layer.weight": {"step": 12}},
//              "param_groups": [{"params": ["layer.weight", ...], "options": {"lr": 0.001, ...}}]}
//
// Parameters of the second model are named model_1:<name>, and so on; those of no model by their
// place: group_0:3.
//
// Threads:  the thread that trains.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include <accel/safetensors_file.h>

namespace torch::nn {
class Module;
}
namespace torch::optim {
class Optimizer;
}

namespace accel {
class StatePlaces;
}

namespace accel::checkpoint {

class ParameterNames {
 public:
  explicit ParameterNames(const std::vector<torch::nn::Module*>& models);
  // `group` and `index` are its place in the optimizer, for a parameter of no model.
  [[nodiscard]] std::string name_of(const at::Tensor& parameter, size_t group, size_t index) const;
  // The parameter that a tensor of an optimizer's file ("layer.weight.exp_avg") belongs to; nullptr: to none of a model.
  [[nodiscard]] const at::Tensor* parameter_of(const std::string& field) const;

 private:
  std::unordered_map<const void*, std::string> names_;
  std::unordered_map<std::string, at::Tensor> parameters_;
};

struct SavedOptimizer {
  safetensors::TensorMap tensors;
  std::string json;
};

// Errors  throws kUnsupported, naming the type, for one of the user's own that does not write its states.
[[nodiscard]] SavedOptimizer save_optimizer(torch::optim::Optimizer& optimizer,
                                            const ParameterNames& names);

// The tensors of a parameter's state that have its shape; none for optimizers that are none of LibTorch's.
[[nodiscard]] std::vector<at::Tensor> state_tensors(torch::optim::Optimizer& optimizer,
                                                    const at::Tensor& parameter);

// Bytes of the tensors that the first step will make for parameters that have no state yet; 0 where that is not known.
[[nodiscard]] std::uint64_t expected_state_bytes(const torch::optim::Optimizer& optimizer);

// Whether tensors of its states may be divided over ranks: those of a class of the user's own are only where the class is
// asked for them, and then whole.
[[nodiscard]] bool may_have_divided_states(const torch::optim::Optimizer& optimizer);

// Whether a load copies the tensors of its states to where they are, or into tensors of their own. Others are given what was
// loaded, to keep.
[[nodiscard]] bool copies_loaded_states(const torch::optim::Optimizer& optimizer);

// Checks everything now; the returned function changes the optimizer and cannot fail on what was
// saved. `what` names the optimizer in messages ("optimizer_1"). places: where states go; nullptr: into memory. Errors  throws
// kCheckpointMismatch: another type, other groups or parameters, a tensor of another shape; kDiskFull: no room for places.
[[nodiscard]] std::function<void()> prepare_optimizer_load(torch::optim::Optimizer& optimizer,
                                                           const ParameterNames& names,
                                                           SavedOptimizer saved,
                                                           const std::string& what,
                                                           StatePlaces* places = nullptr);

}  // namespace accel::checkpoint
