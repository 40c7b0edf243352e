// DeviceLimits: what is not there yet of models that are divided on a device, refused by name.
//
// Threads:  pure.
#pragma once

#include <c10/core/Device.h>

#include "libaccel/engine/process/mesh.h"
#include "libaccel/engine/settings/fsdp_settings.h"

namespace accel::sharding {

// Throws kUnsupported, with the option and what to do. On the CPU it does nothing.
void refuse_on_device(c10::Device device, const FsdpSettings& settings, const Mesh& mesh);

}  // namespace accel::sharding
