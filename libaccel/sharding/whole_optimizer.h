// WholeOptimizer: the optimizer of sharded models as one process would have it, for checkpoints.
//
// A checkpoint of a sharded run is that of any other run: it goes on with another number of ranks, another strategy, or
// copies. For saving, the pieces of all ranks are put together; after loading, each rank takes its own.
//
// Threads:  the thread that trains.
// Cost:     while it exists, the optimizer's whole state on each rank.
#pragma once

#include <memory>

namespace torch::optim {
class Optimizer;
}

namespace accel::sharding {

class ShardedOptimizer;

// Whether each element of a step depends on that element alone, so that shards can be stepped: SGD, Adam, AdamW, RMSprop,
// Adagrad, but no class derived from them.
[[nodiscard]] bool is_element_wise(const torch::optim::Optimizer& optimizer);

// An optimizer of the same type, options and groups on the whole parameters, without states.
[[nodiscard]] std::unique_ptr<torch::optim::Optimizer> whole_optimizer(
    torch::optim::Optimizer& optimizer, const ShardedOptimizer& sharded);

// Gives `whole` the states of all ranks. Throws kPeerLost, kProcessGroup. Requires: every rank calls it.
void gather_states(torch::optim::Optimizer& optimizer,
                   const ShardedOptimizer& sharded,
                   torch::optim::Optimizer& whole);

// Gives `optimizer` this rank's part of the states of `whole`, and its options.
void scatter_states(torch::optim::Optimizer& whole,
                    const ShardedOptimizer& sharded,
                    torch::optim::Optimizer& optimizer);

}  // namespace accel::sharding
