// ParameterList: the parameters of a module by name, and where two ranks' lists differ.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

namespace torch::nn {
class Module;
}

namespace accel {

class ProcessGroup;

struct NamedParameter {
  std::string name;
  at::Tensor tensor;
  bool expects_sparse_gradient = false;  // torch::nn::Embedding with sparse(true)
};

// The parameters that require a gradient, each once: a tied one under its first name.
std::vector<NamedParameter> trainable_parameters(const torch::nn::Module& module);

// "name dtype [2, 3]" for each, one per line; with its strides when they are not those of a contiguous tensor: flat
// gradients and shards are laid out as the parameter is.
std::string describe(const std::vector<NamedParameter>& parameters);

// How the first line of `other` that differs from rank 0's `reference` differs, as the end of a
// sentence
// ("has 'w Float [2]' where ..."); nullopt when they are equal. Pure.
std::optional<std::string> first_difference(const std::string& reference, const std::string& other);

// Compares the lists of all ranks. Throws kShapeMismatch, the same on every rank, naming the first
// parameter that differs from rank 0's and the rank that has it. Cost: one message of 16 bytes.
void verify_same_parameters(const std::vector<NamedParameter>& parameters, ProcessGroup& group);

}  // namespace accel
