// ModuleTensors: the parameters and buffers of a module by name, and the classes of its submodules, as a file names them.
//
// Threads:  one at a time; borrows the module.
#pragma once

#include <map>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

namespace accel::exporting {

struct ModuleTensor {
  std::string name;  // "layers.0.weight"
  at::Tensor tensor;
  bool is_parameter = false;
};

// A submodule; "" is the module itself.
struct ModulePart {
  std::string class_name;  // "torch.nn.Linear" of torch::nn::LinearImpl
  bool is_container =
      false;  // of those that hold modules and are not called: torch::nn::ModuleList and its like
  bool is_leaf = false;  // has no submodules
};

// In the order of named_parameters() and named_buffers(); parameters first. Tied ones come once for each name.
[[nodiscard]] std::vector<ModuleTensor> tensors_of(const torch::nn::Module& module);

// By path.
[[nodiscard]] std::map<std::string, ModulePart> parts_of(const torch::nn::Module& module);

// "my.Block" of "my::BlockImpl".
[[nodiscard]] std::string python_class(const std::string& name);

}  // namespace accel::exporting
