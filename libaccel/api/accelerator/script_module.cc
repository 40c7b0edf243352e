// torch::nn knows no parameter whose name has a dot, so each submodule of the script becomes one here: it has the
// script's tensors and the name of the script's class (by which units can be wrapped), and no forward.

#include <string>

#include <torch/csrc/jit/api/module.h>

#include <accel/error.h>
#include <accel/script_module.h>

#include "libaccel/engine/pager/module_parameters.h"

namespace accel {
namespace {

// As messages have it; name() is the qualified one, by which classes to wrap are found.
std::string short_name(const torch::jit::Module& script) {
  const auto name = script.type()->name();
  return name ? name->name() : "ScriptModule";
}

std::string class_of(const torch::jit::Module& script) {
  const auto name = script.type()->name();
  return name ? name->qualifiedName() : "ScriptModule";
}

void adopt(torch::nn::Module& into, const torch::jit::Module& script);

struct ScriptPart final : torch::nn::Module {
  explicit ScriptPart(const torch::jit::Module& script) : torch::nn::Module(class_of(script)) {
    adopt(*this, script);
  }
};

void adopt(torch::nn::Module& into, const torch::jit::Module& script) {
  for (const auto& parameter : script.named_parameters(/*recurse=*/false)) {
    into.register_parameter(parameter.name, parameter.value, parameter.value.requires_grad());
  }
  for (const auto& buffer : script.named_buffers(/*recurse=*/false)) {
    into.register_buffer(buffer.name, buffer.value);
  }
  for (const auto& child : script.named_children()) {
    into.register_module(child.name, std::make_shared<ScriptPart>(child.value));
  }
}

}  // namespace

ScriptModuleImpl::ScriptModuleImpl(const torch::jit::Module& script)
    : torch::nn::Module(class_of(script)), script_(std::make_unique<torch::jit::Module>(script)) {
  (void)pager::parameters_of(script);  // refuses frozen ones
  adopt(*this, script);
  torch::nn::Module::train(script.is_training());
}

ScriptModuleImpl::~ScriptModuleImpl() = default;

void ScriptModuleImpl::train(bool on) {
  torch::nn::Module::train(on);
  script_->train(on);
}

at::Tensor ScriptModuleImpl::run(std::vector<c10::IValue> inputs) {
  c10::IValue output = script_->forward(std::move(inputs));
  if (!output.isTensor()) {
    throw Error(ErrorCode::kUnsupported,
                "the TorchScript module '" + short_name(*script_) + "' returned a " +
                    output.tagKind() + ", expected one tensor",
                "let its forward return a tensor, or call script() in a module of your own");
  }
  return std::move(output).toTensor();
}

}  // namespace accel
