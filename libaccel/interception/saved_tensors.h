// SavedTensors: who keeps what autograd saves for a backward, of unmodified modules: in other memory, on a disk, compressed, or
// not at all, to be computed again.
//
// Autograd asks its engine for hooks whenever it saves a tensor. The engine of the process is replaced by one that differs in
// its answer alone, when the first scope is made and for good; LibTorch's Python does the same, so both cannot be.
//
// Threads:  any, but the first scope is not made during a backward. Hooks pack on the thread that runs forward, and unpack on that
//           of the backward.
// Cost:     a virtual call for each tensor that is saved; before the first scope none.
// Source:   torch/csrc/autograd/engine.h, saved_variable_hooks.h of LibTorch 2.11.
#pragma once

#include <functional>
#include <memory>

#include <torch/csrc/autograd/saved_variable_hooks.h>

namespace accel::interception {

// While it lives, what operators on its thread save is kept by hooks, an object for each tensor. The scope that was made last
// is asked alone.
class SavedTensorScope {
 public:
  // nullptr: autograd keeps this one itself.
  using MakeHooks = std::function<std::unique_ptr<torch::autograd::SavedVariableHooks>()>;

  // Throws kUnsupported: another library has replaced the engine.
  explicit SavedTensorScope(MakeHooks make_hooks);
  ~SavedTensorScope();
  SavedTensorScope(const SavedTensorScope&) = delete;
  SavedTensorScope& operator=(const SavedTensorScope&) = delete;

 private:
  friend struct SavedTensorEngine;
  MakeHooks make_hooks_;
  SavedTensorScope* outer_;
};

}  // namespace accel::interception
