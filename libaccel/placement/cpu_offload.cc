// Offload to host memory, where the CPU computes anyway, and the weights of an offloaded model as a state_dict.

#include <algorithm>
#include <mutex>

#include <ATen/core/grad_mode.h>
#include <torch/nn/module.h>

#include <accel/error.h>
#include <accel/module_tensors.h>
#include <accel/offload.h>

#include "libaccel/engine/checkpoint/states/module_state.h"
#include "libaccel/engine/pager/weight_file.h"
#include "libaccel/placement/planning_log.h"

namespace accel {
namespace {

using torch::nn::Module;
using WeightsByName = std::map<std::string, at::Tensor>;

void check_computes_here(const std::optional<at::Device>& device) {
  if (!device || device->is_cpu()) return;
  throw Error(ErrorCode::kUnsupported,
              "execution_device is " + device->str() + ", and this build of libaccel has no GPUs",
              "leave execution_device out");
}

void say_that_nothing_moves() {
  static std::once_flag said;
  std::call_once(said, [] {
    placement::warn(
        "cpu_offload and cpu_offload_with_hook move nothing: the CPU computes with weights in "
        "host memory. To take less of it, use disk_offload");
  });
}

Error without_values(const std::string& name) {
  return Error(ErrorCode::kInvalidArgument,
               "Cannot copy out of meta tensor; no data! It is '" + name + "'",
               "load its values first, or give them in state_dict");
}

// Errors  throws kInvalidArgument naming a tensor of the meta device.
void check_has_values(const Module& model) {
  for (const auto& item : checkpoint::state_of(model))
    if (item.tensor.is_meta()) throw without_values(item.name);
}

// Errors  throws kUnsupported, in Accelerate's words.
void check_may_move(const Module& model) {
  if (has_offloaded_params(model)) {
    throw Error(ErrorCode::kUnsupported,
                "You can't move a model that has some modules offloaded to cpu or disk.",
                "call cpu_offload, which brings them to memory");
  }
  check_has_values(model);
}

// What a tensor of the model is to be; undefined: as it is.
at::Tensor value_for(const checkpoint::NamedTensor& item,
                     const WeightsByName& state_dict,
                     bool is_taken) {
  if (!is_taken || state_dict.empty()) return {};
  const auto found = state_dict.find(item.name);
  if (found == state_dict.end()) {
    throw Error(ErrorCode::kInvalidArgument,
                "state_dict lacks '" + item.name + "'",
                "give all weights of the model, or leave state_dict out");
  }
  const at::Tensor& value = found->second;
  if (value.is_meta()) throw without_values(item.name);
  if (value.sizes() != item.tensor.sizes()) {
    throw Error(ErrorCode::kInvalidArgument,
                "'" + item.name + "' is of shape " + c10::str(value.sizes()) +
                    " in state_dict, and of " + c10::str(item.tensor.sizes()) + " in the model",
                "give the weights of this model");
  }
  return value;
}

at::Tensor in_memory(const at::Tensor& tensor) {
  const at::NoGradGuard no_grad;
  return pager::is_in_file(tensor) ? tensor.detach().clone() : tensor.detach();
}

}  // namespace

void cpu_offload(Module& model, const CpuOffloadOptions& options) {
  check_computes_here(options.execution_device);
  const auto buffers = model.buffers();
  WeightsByName values;
  for (const auto& item : checkpoint::state_of(model)) {
    const bool is_buffer = std::ranges::any_of(
        buffers, [&](const at::Tensor& buffer) { return buffer.is_same(item.tensor); });
    at::Tensor value = value_for(item, options.state_dict, !is_buffer || options.offload_buffers);
    if (!value.defined() && item.tensor.is_meta()) throw without_values(item.name);
    if (value.defined() || pager::is_in_file(item.tensor)) values[item.name] = std::move(value);
  }
  for (const auto& [name, value] : values)
    set_module_tensor_to_device(model, name, at::kCPU, {.value = value});
  say_that_nothing_moves();
}

void UserCpuOffloadHook::offload() {
  if (model_ != nullptr) check_may_move(*model_);
}

UserCpuOffloadHook cpu_offload_with_hook(Module& model,
                                         const std::optional<at::Device>& execution_device,
                                         UserCpuOffloadHook* prev_module_hook) {
  check_computes_here(execution_device);
  check_may_move(model);
  if (prev_module_hook != nullptr) prev_module_hook->offload();
  say_that_nothing_moves();
  return UserCpuOffloadHook(model);
}

WeightsByName get_state_dict_offloaded_model(const Module& model) {
  WeightsByName state_dict;
  std::string placeholders;
  for (const auto& item : checkpoint::state_of(model)) {
    if (item.tensor.is_meta()) {
      placeholders += (placeholders.empty() ? "" : ", ") + item.name;
    } else {
      state_dict[item.name] = in_memory(item.tensor);
    }
  }
  if (!placeholders.empty()) {
    placement::warn(
        "The following tensors were not saved because they were still on meta device: " +
        placeholders);
  }
  return state_dict;
}

WeightsByName get_state_dict_from_offload(const Module& module,
                                          const std::string& module_name,
                                          WeightsByName state_dict) {
  const auto dot = module_name.rfind('.');
  const std::string root = dot == std::string::npos ? "" : module_name.substr(0, dot + 1);
  for (const auto& item : checkpoint::state_of(module)) {
    const auto found = state_dict.find(root + item.name);
    if (found != state_dict.end()) found->second = in_memory(item.tensor);
  }
  return state_dict;
}

std::vector<std::string> PrefixedDataset::keys() const {
  std::vector<std::string> names = dataset_.keys();
  std::erase_if(names, [&](const std::string& name) { return !name.starts_with(prefix_); });
  return names;
}

WeightsByName extract_submodules_state_dict(const WeightsByName& state_dict,
                                            const std::vector<std::string>& submodule_names) {
  WeightsByName result;
  for (const std::string& module : submodule_names)
    for (const auto& [name, tensor] : state_dict)
      if (name == module || name.starts_with(module + ".")) result[name] = tensor;
  return result;
}

}  // namespace accel
