// ScriptModule: a TorchScript module as a torch::nn one, so that prepare() takes it.
//
//   accel::ScriptModule net(torch::jit::load("net.pt"));
//   auto [model, optimizer] = accelerator.prepare(net, adamw);
//   accelerator.backward(loss_of(model(batch)));
//
// Parameters and buffers are those of the script, the same tensor objects under the same names, so what sharding or a
// checkpoint does to them the script sees. train(), eval() and to() reach the script.
//
// Threads:  as the script's.
// Cost:     a forward is one call of the script's.
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
  // Switches LibTorch's fusers of tensor expressions off for the process: fused kernels read parameters past the
  // dispatcher. Throws kUnsupported naming a (sub)module that is frozen: its parameters are constants of its code.
  explicit ScriptModuleImpl(const torch::jit::Module& script);
  ~ScriptModuleImpl() override;

  // Calls the script's forward. Throws kUnsupported when it returns anything but one tensor, and what the script throws.
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

// What TORCH_MODULE makes, but for the call: its own needs a forward() that is no template.
class ScriptModule : public torch::nn::ModuleHolder<ScriptModuleImpl> {
 public:
  using torch::nn::ModuleHolder<ScriptModuleImpl>::ModuleHolder;

  template <typename... Args>
  at::Tensor operator()(Args&&... args) {
    return (*this)->forward(std::forward<Args>(args)...);
  }
};

}  // namespace accel
