// ModuleTensors: lists single parameters and buffers of a module by name, sets their values, ties
// them.
//
//   accel::set_module_tensor_to_device(*net, "head.weight", at::kCPU, {.value = weight});
//   {
//     const auto aligned = accel::align_module_device(*net->first);  // from disk to memory
//     look_at(net->first->weight.data_ptr<float>());
//   }
//
// A tensor stays the same object, because fields of the module refer to it too. So tied names
// change together, and optimizers see the change.
//
// Threads:  the thread that owns the model.
// Source:   accelerate 1.15.0, utils/modeling.py (tests/peer/module_tensors.py).
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <accel/export.h>

namespace torch::nn {
class Module;
}

namespace accel {

// Whether it is the same device; a GPU without a number is GPU 0. Pure.
[[nodiscard]] ACCEL_EXPORT bool check_device_same(const at::Device& first,
                                                  const at::Device& second);

struct ModuleTensorsOptions {
  bool include_buffers = true;
  // Also of all submodules.
  bool recurse = false;
  // Without buffers that are not saved (accel/non_persistent_buffers.h).
  bool remove_non_persistent = false;
};

// Parameters, then buffers. A tensor with several names is listed once, under the first.
[[nodiscard]] ACCEL_EXPORT std::vector<std::pair<std::string, at::Tensor>> named_module_tensors(
    const torch::nn::Module& module, const ModuleTensorsOptions& options = {});

struct SetTensorOptions {
  // Must have the tensor's shape. If device and dtype match, it is used without a copy.
  at::Tensor value = {};
  // Default: the tensor's dtype. Integer tensors keep theirs. Without a value it applies only to
  // at::kMeta.
  std::optional<at::ScalarType> dtype = {};
};

// Sets the value of a parameter or buffer, or moves it: at::kMeta frees its memory, at::kCPU loads
// a weight on disk into memory. Errors  throws kInvalidArgument: no such name, another shape, no
// value for a tensor on the meta device; kUnsupported: a device that this build does not have.
// Nothing is changed then.
ACCEL_EXPORT void set_module_tensor_to_device(torch::nn::Module& module,
                                              const std::string& tensor_name,
                                              const at::Device& device,
                                              const SetTensorOptions& options = {});

// Lets all names of a group share the memory of the first one that has memory. This repairs ties
// that torch::nn::Module::clone() or loading by names broke. The names share only values: different
// tensor objects keep separate gradients. find_tied_parameters() returns such groups.
// Errors  throws kInvalidArgument: no such name, another shape or dtype; nothing is changed then.
ACCEL_EXPORT void retie_parameters(torch::nn::Module& model,
                                   const std::vector<std::vector<std::string>>& tied_params);

// Keeps the weights of align_module_device() in memory during its lifetime.
class ACCEL_EXPORT AlignedModule {
 public:
  AlignedModule() = default;  // changes nothing
  // Moves the weights back to disk. Changes to them are lost.
  ~AlignedModule();
  AlignedModule(AlignedModule&&) noexcept = default;
  AlignedModule& operator=(AlignedModule&&) = delete;

 private:
  friend ACCEL_EXPORT AlignedModule align_module_device(torch::nn::Module& module,
                                                        const std::optional<at::Device>& device);
  std::vector<std::pair<at::Tensor, at::Tensor>> before_;  // a tensor, and its memory
};

// Loads the module's own weights on disk into memory, without its submodules: for code that
// uses addresses or writes. A module without such weights is unchanged. Errors  throws
// kUnsupported: a device other than the CPU.
[[nodiscard]] ACCEL_EXPORT AlignedModule align_module_device(
    torch::nn::Module& module, const std::optional<at::Device>& execution_device = {});

}  // namespace accel
