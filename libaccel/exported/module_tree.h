// ModuleTree: the tensors of an exported model in submodules, as they were in Python.
//
// torch::nn knows no parameter whose name has a dot, so "model.layers.0.mlp.up.weight" is the parameter weight of the submodule
// up of the submodule mlp, and so on. name() of a submodule is its Python class; of one that is never called the file says
// none: one without tensors of its own is taken for a list or a dict of modules, which policies do not wrap.
//
// Threads:  one at a time.
#pragma once

#include <map>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include "libaccel/exported/graph.h"

namespace accel::exported {

// A tensor of a module: a parameter by who has it, so that what took the place of the registered one is found; a buffer as
// itself, since torch::nn changes its data alone.
struct TensorPlace {
  torch::nn::Module* owner = nullptr;  // lives as long as the root; nullptr: a buffer
  std::string key;
  at::Tensor buffer;

  [[nodiscard]] const at::Tensor& tensor() const;
};

// Python classes by the paths of modules; "" is the root.
using ClassNames = std::map<std::string, std::string>;

// Of all modules that a graph's nodes were called in.
[[nodiscard]] ClassNames class_names(const Graph& graph);

// "model.layers.0" of a call's path "model.layers.0@1", its second one.
[[nodiscard]] std::string module_path(const std::string& call_path);

struct SplitName {
  std::string path;  // of the module
  std::string last;
};

class ExportedPart;

class ModuleTree {
 public:
  ModuleTree(torch::nn::Module& root, ClassNames classes)
      : root_(root), classes_(std::move(classes)) {}

  // In the order of calls, which is the order of named_parameters() within a module. Throws kCheckpointIncomplete for a name
  // that torch::nn cannot have.
  TensorPlace add_parameter(const std::string& name, const at::Tensor& tensor, bool requires_grad);
  TensorPlace add_buffer(const std::string& name, const at::Tensor& tensor, bool is_persistent);

  // Paths that get tensors: until they are known, a module without any is taken for a list.
  void expect(const std::vector<std::string>& names);

 private:
  torch::nn::Module& owner_of(const std::string& path);
  [[nodiscard]] SplitName split_tensor_name(const std::string& name) const;
  [[nodiscard]] std::string class_of(const std::string& path) const;

  torch::nn::Module& root_;
  ClassNames classes_;
  std::map<std::string, ExportedPart*> modules_;
  std::map<std::string, bool> has_tensors_;  // by path
  std::map<std::string, bool> has_numbers_;  // whether all children are called by numbers
};

}  // namespace accel::exported
