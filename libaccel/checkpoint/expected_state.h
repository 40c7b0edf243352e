// ExpectedState: how much state an optimizer will have after its first step.
//
// Threads:  the thread that trains.
#pragma once

#include <cstdint>

namespace torch::optim {
class Optimizer;
}

namespace accel::checkpoint {

// Bytes of the tensors that SGD, Adam, AdamW and RMSprop will make for parameters that have no state yet; 0 for all others.
[[nodiscard]] std::uint64_t expected_state_bytes(const torch::optim::Optimizer& optimizer);

}  // namespace accel::checkpoint
