// NonPersistentBuffers: marks buffers of a module that are not saved, like register_buffer(persistent=False) in Python.
//
// torch::nn saves every buffer. A module that also derives from this class can exclude buffers that it computes itself. save_state(),
// save_model() and get_state_dict() do not write them, and a load does not require them. prepare() still sends the main process's
// values to all ranks. Each submodule decides for its own buffers.
//
//   struct Rotary : torch::nn::Module, accel::NonPersistentBuffers {
//     bool is_persistent_buffer(const std::string& name) const override { return name != "inv_freq"; }
//   };
//
// Source: torch.nn.Module.register_buffer().
// Threads:  called on the thread that saves or loads.
#pragma once

#include <string>

#include <accel/export.h>

namespace accel {

class ACCEL_EXPORT NonPersistentBuffers {
 public:
  virtual ~NonPersistentBuffers() = default;

  // name: the registered name, without the path of the module.
  [[nodiscard]] virtual bool is_persistent_buffer(const std::string& name) const = 0;

 protected:
  NonPersistentBuffers() = default;
  NonPersistentBuffers(const NonPersistentBuffers&) = default;
  NonPersistentBuffers& operator=(const NonPersistentBuffers&) = default;
};

}  // namespace accel
