// OwnEnvironment: the launcher's name for runtime/own_environment.h.
#pragma once

#include "runtime/own_environment.h"

namespace accel::launcher {

using accel::own_environment;

}  // namespace accel::launcher
