// ModuleState: what a forward changes, kept so that a module is after an export what it was before.
//
// Threads:  the one that traces.
#pragma once

#include <utility>
#include <vector>

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include "libaccel/exporting/module_tensors.h"

namespace accel::exporting {

// Values of buffers, and states of the random generators of the devices that the tensors are on.
class VolatileState {
 public:
  // Borrows nothing; the tensors are held.
  explicit VolatileState(const std::vector<ModuleTensor>& tensors);
  // As when it was made; any number of times.
  void restore() const;

 private:
  std::vector<std::pair<at::Tensor, at::Tensor>> buffers_;        // and their values
  std::vector<std::pair<at::Generator, at::Tensor>> generators_;  // and their states
};

// Puts everything back when it ends: the state above, and train() or eval() of each submodule.
class ModuleStateScope {
 public:
  ModuleStateScope(torch::nn::Module& module, const std::vector<ModuleTensor>& tensors);
  ~ModuleStateScope();
  ModuleStateScope(const ModuleStateScope&) = delete;
  ModuleStateScope& operator=(const ModuleStateScope&) = delete;

  [[nodiscard]] const VolatileState& state() const noexcept { return state_; }
  // In training as the module was, if it was; else all of it.
  void set_training(bool on);

 private:
  void restore_modes();

  torch::nn::Module& module_;
  VolatileState state_;
  std::vector<bool> modes_;  // of the modules, from the root inwards
};

// Copies that a forward may write to: a trace leaves the caller's tensors alone.
[[nodiscard]] std::vector<at::Tensor> fresh(const std::vector<at::Tensor>& inputs);

}  // namespace accel::exporting
