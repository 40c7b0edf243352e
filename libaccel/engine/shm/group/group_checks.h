// GroupChecks: what every group asks of a call before it begins.
//
// Threads:  pure functions.
// Errors    kInvalidArgument.
#pragma once

#include <accel/result.h>

#include "libaccel/engine/shm/numbers/data_type.h"

namespace accel::shm {

[[nodiscard]] Result<void> check_root(int root, int world_size);

// With what to do where the operation is not defined for the type.
[[nodiscard]] Result<void> check_reduction(DataType type, ReduceOp op);

}  // namespace accel::shm
