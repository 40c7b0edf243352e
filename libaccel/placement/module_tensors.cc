// Single tensors of a module. They change in place: the module's fields and its registered names hold one implementation.

#include <algorithm>
#include <functional>
#include <unordered_set>

#include <ATen/core/grad_mode.h>
#include <torch/nn/module.h>

#include <accel/error.h>
#include <accel/module_tensors.h>
#include <accel/non_persistent_buffers.h>

#include "libaccel/engine/construction/tensor_memory.h"
#include "libaccel/engine/pager/weight_file.h"
#include "libaccel/engine/sharding/wrap_policy.h"
#include "libaccel/placement/module_outline.h"

namespace accel {
namespace {

using torch::nn::Module;
using NamedTensors = std::vector<std::pair<std::string, at::Tensor>>;

// Calls visit(path, module) for the module and all below it, parents first, each once.
void visit_once(const Module& module,
                const std::string& path,
                std::unordered_set<const Module*>& seen,
                const std::function<void(const std::string&, const Module&)>& visit) {
  if (!seen.insert(&module).second) return;
  visit(path, module);
  for (const auto& child : module.named_children())
    visit_once(*child.value(), placement::path_of(path, child.key()), seen, visit);
}

// The tensors of a module and of those below, each once.
class TensorList {
 public:
  void add(const std::string& name, const at::Tensor& tensor) {
    if (tensor.defined() && seen_.insert(tensor.unsafeGetTensorImpl()).second)
      tensors_.emplace_back(name, tensor);
  }
  [[nodiscard]] NamedTensors take() { return std::move(tensors_); }

 private:
  NamedTensors tensors_;
  std::unordered_set<const void*> seen_;
};

bool is_saved(const Module& module, const std::string& buffer) {
  const auto* const unsaved = dynamic_cast<const NonPersistentBuffers*>(&module);
  return unsaved == nullptr || unsaved->is_persistent_buffer(buffer);
}

at::Tensor tensor_at(const Module& model, const std::string& name) {
  const Module* module = &model;
  std::string rest = name;
  for (auto dot = rest.find('.'); dot != std::string::npos; dot = rest.find('.')) {
    const auto children = module->named_children();
    const auto* const child = children.find(rest.substr(0, dot));
    if (child == nullptr) {
      throw Error(ErrorCode::kInvalidArgument,
                  sharding::class_name_of(module->name()) + " has no attribute " +
                      rest.substr(0, dot) + ".",
                  "take a name that named_module_tensors() gives");
    }
    // The model holds it.
    module = child->get();
    rest.erase(0, dot + 1);
  }
  for (const auto& tensors : {module->named_parameters(false), module->named_buffers(false)})
    if (const at::Tensor* const found = tensors.find(rest); found != nullptr && found->defined())
      return *found;
  throw Error(ErrorCode::kInvalidArgument,
              sharding::class_name_of(module->name()) +
                  " does not have a parameter or a buffer named " + rest + ".",
              "take a name that named_module_tensors() gives");
}

void check_device(const at::Device& device) {
  if (device.is_cpu() || device.is_meta()) return;
  throw Error(
      ErrorCode::kUnsupported,
      "the tensor was to go to " + device.str() + ", and this build of libaccel has no GPUs",
      "name cpu or meta");
}

std::string last_part(const std::string& name) {
  return name.substr(name.rfind('.') + 1);
}

std::string torch_size(const at::Tensor& tensor) {
  return "torch.Size(" + c10::str(tensor.sizes()) + ")";
}

void check_same_shape(const std::string& name, const at::Tensor& tensor, const at::Tensor& value) {
  if (tensor.sizes() == value.sizes()) return;
  throw Error(ErrorCode::kInvalidArgument,
              "Trying to set a tensor of shape " + torch_size(value) + " in \"" + last_part(name) +
                  "\" (which has shape " + torch_size(tensor) + "), this looks incorrect.",
              "give it a value of its shape");
}

void check_tied_dtype(const std::string& name,
                      const at::Tensor& tensor,
                      const std::pair<std::string, at::Tensor>& first) {
  if (tensor.scalar_type() == first.second.scalar_type()) return;
  throw Error(ErrorCode::kInvalidArgument,
              "'" + name + "' is of " + c10::toString(tensor.scalar_type()) + ", and '" +
                  first.first + "', which it is to be tied to, of " +
                  c10::toString(first.second.scalar_type()),
              "convert one of them, and tie them then");
}

void check_gradient(const std::string& name, const at::Tensor& tensor, at::ScalarType dtype) {
  if (!tensor.requires_grad() || !at::isIntegralType(dtype, /*includeBool=*/true)) return;
  throw Error(ErrorCode::kInvalidArgument,
              "'" + name + "' requires a gradient, and its value would be of " +
                  c10::toString(dtype) + ", which has none",
              "leave dtype out, and the value is converted to the tensor's");
}

// Accelerate's rule: what is no floating point value keeps its dtype where one is named.
at::Tensor converted(const at::Tensor& value,
                     const at::Tensor& tensor,
                     const std::optional<at::ScalarType>& dtype) {
  if (!dtype) return value.to(tensor.scalar_type());
  return at::isIntegralType(value.scalar_type(), /*includeBool=*/true) ? value : value.to(*dtype);
}

}  // namespace

bool check_device_same(const at::Device& first, const at::Device& second) {
  const auto number = [](const at::Device& device) {
    return device.is_cpu() || device.has_index() ? device.index() : at::DeviceIndex{0};
  };
  return first.type() == second.type() && number(first) == number(second);
}

NamedTensors named_module_tensors(const Module& module, const ModuleTensorsOptions& options) {
  TensorList parameters;
  TensorList buffers;
  const auto add = [&](const std::string& path, const Module& one) {
    for (const auto& item : one.named_parameters(/*recurse=*/false))
      parameters.add(placement::path_of(path, item.key()), item.value());
    if (!options.include_buffers) return;
    for (const auto& item : one.named_buffers(/*recurse=*/false))
      if (!options.remove_non_persistent || is_saved(one, item.key()))
        buffers.add(placement::path_of(path, item.key()), item.value());
  };
  std::unordered_set<const Module*> seen;
  if (options.recurse) {
    visit_once(module, "", seen, add);
  } else {
    add("", module);
  }
  NamedTensors tensors = parameters.take();
  for (auto& buffer : buffers.take()) tensors.push_back(std::move(buffer));
  return tensors;
}

void set_module_tensor_to_device(Module& module,
                                 const std::string& tensor_name,
                                 const at::Device& device,
                                 const SetTensorOptions& options) {
  check_device(device);
  const at::NoGradGuard no_grad;
  const at::Tensor tensor = tensor_at(module, tensor_name);
  const bool has_value = options.value.defined();
  if (tensor.is_meta() && !device.is_meta() && !has_value) {
    throw Error(ErrorCode::kInvalidArgument,
                last_part(tensor_name) + " is on the meta device, we need a `value` to put in on " +
                    device.str() + ".",
                "give SetTensorOptions::value");
  }
  if (has_value) check_same_shape(tensor_name, tensor, options.value);
  at::Tensor values = tensor.detach();
  if (has_value) {
    values = converted(options.value.detach(), tensor, options.dtype);
  } else if (device.is_meta()) {
    values = converted(construction::without_memory(values), tensor, options.dtype);
  }
  values = device.is_meta() && !values.is_meta() ? construction::without_memory(values)
                                                 : values.to(device);
  if (pager::is_in_file(values)) values = values.clone();
  check_gradient(tensor_name, tensor, values.scalar_type());
  tensor.mutable_grad().reset();  // of the value before
  construction::give_memory(tensor, values);
}

void retie_parameters(Module& model, const std::vector<std::vector<std::string>>& tied_params) {
  const at::NoGradGuard no_grad;
  std::vector<std::pair<at::Tensor, at::Tensor>> changes;
  for (const auto& group : tied_params) {
    NamedTensors tensors;
    for (const std::string& name : group) tensors.emplace_back(name, tensor_at(model, name));
    const auto first =
        std::ranges::find_if(tensors, [](const auto& item) { return !item.second.is_meta(); });
    if (first == tensors.end()) continue;
    for (const auto& [name, tensor] : tensors) {
      check_same_shape(name, tensor, first->second);
      check_tied_dtype(name, tensor, *first);
      if (!tensor.is_same(first->second)) changes.emplace_back(tensor, first->second.detach());
    }
  }
  for (const auto& [tensor, memory] : changes) construction::give_memory(tensor, memory);
}

AlignedModule::~AlignedModule() {
  const at::NoGradGuard no_grad;
  for (const auto& [tensor, memory] : before_) tensor.set_data(memory);
}

AlignedModule align_module_device(Module& module, const std::optional<at::Device>& device) {
  if (device && !device->is_cpu()) {
    throw Error(ErrorCode::kUnsupported,
                "align_module_device was asked for " + device->str() +
                    ", and weights compute on the CPU alone in this build",
                "name cpu");
  }
  const at::NoGradGuard no_grad;
  AlignedModule aligned;
  for (const auto& [name, tensor] : named_module_tensors(module)) {
    if (!pager::is_in_file(tensor)) continue;
    const at::Tensor copy = tensor.detach().clone();
    aligned.before_.emplace_back(tensor, tensor.detach());
    tensor.set_data(copy);
  }
  return aligned;
}

}  // namespace accel
