// ZeroSettings: what DeepSpeedPlugin and the ACCELERATE_DEEPSPEED_* environment come to, checked.
//
// Threads:  pure functions.
#pragma once

#include <optional>

#include <accel/deepspeed.h>
#include <accel/env_contract.h>

#include "libaccel/engine/settings/fsdp_settings.h"

namespace accel::sharding {

// What "auto" is in the peer.
constexpr double kAutomaticClipping = 1.0;

// Errors  throws kEnvInvalid naming a variable that cannot be read, kInvalidArgument for a stage or a norm to clip by that
// makes no sense, a device that is none, a folder that is not named, or parameters on disk with another stage than 3.
[[nodiscard]] FsdpSettings resolve_zero(const DeepSpeedPlugin& plugin, const EnvLookup& env);

// Whether the launcher asks for DeepSpeed: ACCELERATE_USE_DEEPSPEED. Errors as resolve_zero().
[[nodiscard]] bool environment_wants_deepspeed(const EnvLookup& env);

}  // namespace accel::sharding
