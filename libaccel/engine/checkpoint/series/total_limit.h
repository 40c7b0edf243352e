// TotalLimit: how many checkpoints a series may be told to keep.
#pragma once

#include <optional>

namespace accel::checkpoint {

// Throws kInvalidArgument for a limit below 1; none keeps all.
void check_total_limit(std::optional<int> limit);

}  // namespace accel::checkpoint
