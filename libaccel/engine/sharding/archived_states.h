// ArchivedStates: states of an optimizer of a class of the user's own, on models that are cut by tensors.
//
// Each tensor has one owner, who has its state, whole, and knows alone what is in it. So the owners tell the others names, types
// and shapes; every rank then describes the same states, of which each has its own (engine/checkpoint/states/archived_optimizer.h).
//
// Threads:  the thread that trains.
// Cost:     one small all-gather for each model. What is not divided goes from its owner to all, tensor by tensor.
#pragma once

#include "libaccel/engine/optim/step_gate.h"

namespace torch::optim {
class Optimizer;
}

namespace accel::checkpoint {
class ArchivedOptimizer;
class DividedTensors;
}  // namespace accel::checkpoint

namespace accel::sharding {

class ShardedOptimizer;

// As describe_states(). Requires: every rank calls it.
void describe_archived_states(torch::optim::Optimizer& optimizer,
                              const ShardedOptimizer& sharded,
                              checkpoint::ArchivedOptimizer& whole,
                              checkpoint::DividedTensors& divided,
                              GatheredStates gathered);

// As take_states().
void take_archived_states(checkpoint::ArchivedOptimizer& whole,
                          const ShardedOptimizer& sharded,
                          const checkpoint::DividedTensors& divided,
                          torch::optim::Optimizer& optimizer);

}  // namespace accel::sharding
