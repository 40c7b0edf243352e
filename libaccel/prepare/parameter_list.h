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

// Whether ranks may differ in buffers: not where those of rank 0 are sent to the others.
enum class Buffers { kCompared, kOwn };

// A line for each parameter, then for each buffer that is compared: "name dtype [2, 3]", with its strides when they are
// not those of a contiguous tensor (flat gradients and shards are laid out as the parameter is), and the word frozen or
// buffer.
std::string describe(const torch::nn::Module& module, Buffers buffers);

// How the first line of `other` that differs from rank 0's `reference` differs, as the end of a
// sentence
// ("has 'w Float [2]' where ..."); nullopt when they are equal. Pure.
std::optional<std::string> first_difference(const std::string& reference, const std::string& other);

// Compares the models of all ranks. Throws kShapeMismatch, the same on every rank, naming the first
// tensor that differs from rank 0's and the rank that has it. Cost: one message of 16 bytes.
void verify_same_models(const torch::nn::Module& module, Buffers buffers, ProcessGroup& group);

}  // namespace accel
