#include <algorithm>
#include <utility>

#include <accel/error.h>
#include <accel/model_hooks.h>

#include "runtime/printable.h"
#include "runtime/text/joined.h"

namespace accel {

c10::IValue& HookValues::operator[](std::string_view name) {
  const auto found = std::ranges::find(names, name);
  if (found != names.end()) return values[static_cast<std::size_t>(found - names.begin())];
  throw Error(
      ErrorCode::kInvalidArgument,
      "the hook has no value '" + printable(name) + "', but " + printable(joined(names, ", ")),
      "name one of HookValues::names");
}

void ModelHook::init_hook(const HookedModule& /*module*/) {}
void ModelHook::pre_forward(const HookedModule& /*module*/, HookValues& /*inputs*/) {}
void ModelHook::post_forward(const HookedModule& /*module*/, HookValues& /*outputs*/) {}
void ModelHook::detach_hook(const HookedModule& /*module*/) {}

SequentialHook::SequentialHook(std::vector<std::shared_ptr<ModelHook>> hooks)
    : hooks_(std::move(hooks)) {
  if (std::ranges::find(hooks_, nullptr) != hooks_.end())
    throw Error(ErrorCode::kInvalidArgument, "one of the hooks is nullptr", "leave it out");
}

bool SequentialHook::no_grad() const {
  return std::ranges::any_of(hooks_, [](const auto& hook) { return hook->no_grad(); });
}

void SequentialHook::init_hook(const HookedModule& module) {
  for (const auto& hook : hooks_) hook->init_hook(module);
}

void SequentialHook::pre_forward(const HookedModule& module, HookValues& inputs) {
  for (const auto& hook : hooks_) hook->pre_forward(module, inputs);
}

void SequentialHook::post_forward(const HookedModule& module, HookValues& outputs) {
  for (const auto& hook : hooks_) hook->post_forward(module, outputs);
}

void SequentialHook::detach_hook(const HookedModule& module) {
  for (const auto& hook : hooks_) hook->detach_hook(module);
}

void add_hook_to_module(ExportedModelImpl& model,
                        const std::string& path,
                        std::shared_ptr<ModelHook> hook,
                        bool append) {
  if (hook == nullptr)
    throw Error(ErrorCode::kInvalidArgument,
                "the hook for '" + printable(path) + "' is nullptr",
                "remove hooks with remove_hook_from_module()");
  model.add_hook(path, std::move(hook), append);
}

void remove_hook_from_module(ExportedModelImpl& model, const std::string& path, bool recurse) {
  model.remove_hook(path, recurse);
}

void remove_hook_from_submodules(ExportedModelImpl& model, const std::string& path) {
  model.remove_hook(path, true);
}

}  // namespace accel
