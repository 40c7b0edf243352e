// NonPersistentBuffers: buffers of a module that belong to no state_dict, as register_buffer(persistent=False) makes them in
// Python.
//
// torch::nn saves every buffer. A module that derives from this class too names those that it computes itself: save_state(),
// save_model(), get_state_dict() leave them out, and loading does not ask for them. Ranks still get the main process' values in
// prepare(). Modules inside are asked for their own buffers.
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

  // name: as it was registered, without the path of the module.
  [[nodiscard]] virtual bool is_persistent_buffer(const std::string& name) const = 0;

 protected:
  NonPersistentBuffers() = default;
  NonPersistentBuffers(const NonPersistentBuffers&) = default;
  NonPersistentBuffers& operator=(const NonPersistentBuffers&) = default;
};

}  // namespace accel
