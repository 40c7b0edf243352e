#include "libaccel/exporting/module_state.h"

#include <functional>
#include <mutex>
#include <unordered_set>

#include <ATen/Context.h>
#include <ATen/core/grad_mode.h>

namespace accel::exporting {
namespace {

// Parents before their children: train() of a parent sets those, too.
void for_each_module(torch::nn::Module& module,
                     const std::function<void(torch::nn::Module&)>& visit) {
  visit(module);
  for (const auto& child : module.children()) for_each_module(*child, visit);
}

}  // namespace

VolatileState::VolatileState(const std::vector<ModuleTensor>& tensors) {
  const at::NoGradGuard no_grad;
  std::unordered_set<at::Device> devices = {at::Device(at::kCPU)};
  for (const ModuleTensor& item : tensors) {
    if (!item.is_parameter) buffers_.emplace_back(item.tensor, item.tensor.clone());
    if (item.tensor.is_cuda()) devices.insert(item.tensor.device());
  }
  for (const at::Device& device : devices) {
    at::Generator generator = at::globalContext().defaultGenerator(device);
    const std::lock_guard lock(generator.mutex());
    generators_.emplace_back(generator, generator.get_state());
  }
}

void VolatileState::restore() const {
  const at::NoGradGuard no_grad;
  for (const auto& [buffer, value] : buffers_) buffer.copy_(value);
  for (auto [generator, state] : generators_) {
    const std::lock_guard lock(generator.mutex());
    generator.set_state(state);
  }
}

ModuleStateScope::ModuleStateScope(torch::nn::Module& module,
                                   const std::vector<ModuleTensor>& tensors)
    : module_(module), state_(tensors) {
  for_each_module(module_, [&](torch::nn::Module& part) { modes_.push_back(part.is_training()); });
}

ModuleStateScope::~ModuleStateScope() {
  restore_modes();
  state_.restore();
}

void ModuleStateScope::restore_modes() {
  std::size_t next = 0;
  for_each_module(module_, [&](torch::nn::Module& part) { part.train(modes_[next++]); });
}

void ModuleStateScope::set_training(bool on) {
  restore_modes();
  if (module_.is_training() != on) module_.train(on);
  if (!on) module_.eval();  // a part may be in training that the module is not in
}

std::vector<at::Tensor> fresh(const std::vector<at::Tensor>& inputs) {
  std::vector<at::Tensor> copies;
  for (const at::Tensor& input : inputs)
    copies.push_back(input.detach().clone().requires_grad_(input.requires_grad()));
  return copies;
}

}  // namespace accel::exporting
