// UniqueParameters: lists of parameters in which each stands once, as in those of Python's modules.
//
// LibTorch's parameters() lists a tensor that has two names (tied weights) twice. What is made of such a list counts its
// gradient twice: an optimizer steps it twice, a scaler divides it twice, a norm has it twice. Two entries are one parameter
// when they are the same tensor object; tensors that only share memory have gradients of their own and are two.
//
// Threads:  whichever owns the list.
// Cost:     one look into a hash set per entry.
#pragma once

#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/optim/optimizer.h>

namespace accel {

// In their order, each at its first place.
[[nodiscard]] std::vector<at::Tensor> unique_parameters(const std::vector<at::Tensor>& parameters);

// Those of an optimizer, by group; one that several groups list is in the first of them.
[[nodiscard]] std::vector<std::vector<at::Tensor>> unique_groups(
    const torch::optim::Optimizer& optimizer);

// Makes the groups those; what they have for options and states stays. Errors  throws kUnsupported, and changes nothing, when
// something is repeated in an LBFGS that has stepped: its vectors over all parameters are longer than what would be left; and in
// one of a class that may keep its states by place, naming it (archive_form.h).
void remove_repeated_parameters(torch::optim::Optimizer& optimizer);

}  // namespace accel
