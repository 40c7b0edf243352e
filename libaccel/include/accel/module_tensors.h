// ModuleTensors: single parameters and buffers of a module by name: list them, give them values,
// tie them.
//
//   accel::set_module_tensor_to_device(*net, "head.weight", at::kCPU, {.value = weight});
//   {
//     const auto aligned = accel::align_module_device(*net->first);  // from disk to memory
//     look_at(net->first->weight.data_ptr<float>());
//   }
//
// A tensor keeps its identity, because fields of the module hold it too: tied names change
// together, and optimizers see it.
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
  // Those of all modules below too.
  bool recurse = false;
  // Without buffers that belong to no state_dict (accel/non_persistent_buffers.h).
  bool remove_non_persistent = false;
};

// Parameters, then buffers. One that has several names comes once, under its first.
[[nodiscard]] ACCEL_EXPORT std::vector<std::pair<std::string, at::Tensor>> named_module_tensors(
    const torch::nn::Module& module, const ModuleTensorsOptions& options = {});

struct SetTensorOptions {
  // Has to have the tensor's shape. It is taken without a copy where device and dtype fit.
  at::Tensor value = {};
  // Default: the tensor's own. Whole numbers keep theirs. Without a value it holds for at::kMeta
  // alone.
  std::optional<at::ScalarType> dtype = {};
};

// Gives the parameter or buffer of that name a value, or moves it: to at::kMeta its memory goes, to
// at::kCPU a weight on disk comes into memory. Errors  throws kInvalidArgument: no such name,
// another shape, no value for one of the meta device; kUnsupported: a device that this build does
// not have. Nothing is changed then.
ACCEL_EXPORT void set_module_tensor_to_device(torch::nn::Module& module,
                                              const std::string& tensor_name,
                                              const at::Device& device,
                                              const SetTensorOptions& options = {});

// Lets all names of a group share the memory of the first that has any, for ties that
// torch::nn::Module::clone() or loading by names broke. They share values alone: each name that is
// another tensor keeps a gradient of its own. Groups are as find_tied_parameters() gives them.
// Errors  throws kInvalidArgument: no such name, another shape or dtype; nothing is changed then.
ACCEL_EXPORT void retie_parameters(torch::nn::Module& model,
                                   const std::vector<std::vector<std::string>>& tied_params);

// While it lives, tensors are where align_module_device() has put them.
class ACCEL_EXPORT AlignedModule {
 public:
  AlignedModule() = default;  // changes nothing
  // Puts them back. What was written to them is lost.
  ~AlignedModule();
  AlignedModule(AlignedModule&&) noexcept = default;
  AlignedModule& operator=(AlignedModule&&) = delete;

 private:
  friend ACCEL_EXPORT AlignedModule align_module_device(torch::nn::Module& module,
                                                        const std::optional<at::Device>& device);
  std::vector<std::pair<at::Tensor, at::Tensor>> before_;  // a tensor, and its memory
};

// Brings the module's own weights on disk into memory, not those of modules below: for code that
// takes addresses or writes. A module without such weights stays as it is. Errors  throws
// kUnsupported: a device other than the CPU.
[[nodiscard]] ACCEL_EXPORT AlignedModule align_module_device(
    torch::nn::Module& module, const std::optional<at::Device>& execution_device = {});

}  // namespace accel
