// ParameterList: the parameters of a module by name.
//
// Threads:  any; reads the module.
#pragma once

#include <functional>
#include <string>
#include <unordered_set>
#include <vector>

#include <ATen/core/Tensor.h>

namespace torch::nn {
class Module;
}

namespace accel {

struct NamedParameter {
  std::string name;
  at::Tensor tensor;
  bool expects_sparse_gradient = false;  // torch::nn::Embedding with sparse(true)
};

// The parameters that require a gradient, each once: a tied one under its first name.
std::vector<NamedParameter> trainable_parameters(const torch::nn::Module& module);

// Throws kUnsupported naming the first parameter that requires a gradient and is not known: ranks would train it each for
// itself, or not at all. Cost: 25 to 45 us for the 144 parameters of a transformer of 12 layers, whose forward of 8 positions
// of width 64 takes 3 ms. Looking without names is hardly cheaper: LibTorch copies its dictionaries all the same.
void refuse_added_parameters(const torch::nn::Module& module,
                             const std::unordered_set<const c10::TensorImpl*>& known);

// Each parameter once, a tied one under its first name, in the order of registration: its name, itself, and the module that
// registered it.
using ParameterVisit =
    std::function<void(const std::string&, const at::Tensor&, const torch::nn::Module&)>;
void for_each_parameter(const torch::nn::Module& module, const ParameterVisit& visit);

}  // namespace accel
