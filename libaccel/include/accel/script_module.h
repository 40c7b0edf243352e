// ScriptModule: wraps a TorchScript module in a torch::nn module, for prepare().
//
//   accel::ScriptModule net(torch::jit::load("net.pt"));
//   auto [model, optimizer] = accelerator.prepare(net, adamw);
//   accelerator.backward(loss_of(model(batch)));
//
// Parameters and buffers are the script's own tensor objects, with the same names. So the script sees every change that sharding
// or a checkpoint makes to them. train(), eval() and to() also act on the script.
//
// Threads:  as the script allows.
// Cost:     a forward is one call of the script's forward.
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>

#include <accel/export.h>

namespace torch::jit {
struct Module;
}

namespace accel {

// The module behind a ScriptModule.
class ACCEL_EXPORT ScriptModuleImpl : public torch::nn::Module {
 public:
  // Switches off LibTorch's tensor expression fuser in this process, because fused kernels read parameters without the dispatcher.
  // Throws kUnsupported for a frozen (sub)module and names it: its parameters are constants in its code.
  explicit ScriptModuleImpl(const torch::jit::Module& script);
  ~ScriptModuleImpl() override;

  // Calls the script's forward. Throws kUnsupported if the result is not exactly one tensor. Exceptions of the script pass through.
  template <typename... Args>
  at::Tensor forward(Args&&... args) {
    return run({c10::IValue(std::forward<Args>(args))...});
  }

  void train(bool on = true) override;
  [[nodiscard]] torch::jit::Module& script() const noexcept { return *script_; }

 private:
  at::Tensor run(std::vector<c10::IValue> inputs);

  std::unique_ptr<torch::jit::Module> script_;
};

// As TORCH_MODULE(ScriptModule), with its own operator(): the operator of TORCH_MODULE needs a forward() that is not a template.
class ScriptModule : public torch::nn::ModuleHolder<ScriptModuleImpl> {
 public:
  using torch::nn::ModuleHolder<ScriptModuleImpl>::ModuleHolder;

  template <typename... Args>
  at::Tensor operator()(Args&&... args) {
    return (*this)->forward(std::forward<Args>(args)...);
  }
};

}  // namespace accel
