// WholeOptimizer: the optimizer of sharded models as one process would have it, for checkpoints.
//
// A checkpoint of a sharded run is that of any other run: it goes on with another number of ranks, another strategy, or
// copies. So its states are named and shaped as those of whole parameters; but no rank holds them. A whole optimizer has
// placeholders for them, and a table (checkpoint/divided_tensors.h) says what this rank has of each: its own pieces.
//
// Threads:  the thread that trains.
// Cost:     one small all-reduce for each unit. States of parameters whose memory is not in row-major order are gathered.
#pragma once

#include <memory>

namespace torch::optim {
class Optimizer;
}

namespace accel::checkpoint {
class DividedTensors;
}

namespace accel::sharding {

class ShardedModel;
class ShardedOptimizer;

// Whether each element of a step depends on that element alone, so that shards can be stepped: SGD, Adam, AdamW, RMSprop,
// Adagrad, but no class derived from them.
[[nodiscard]] bool is_element_wise(const torch::optim::Optimizer& optimizer);

// An optimizer of the same type, options and groups on the whole parameters, without states.
[[nodiscard]] std::unique_ptr<torch::optim::Optimizer> whole_optimizer(
    torch::optim::Optimizer& optimizer, const ShardedOptimizer& sharded);

// Notes this rank's pieces of the model's parameters. Left out are those whose memory is not in row-major order: they count
// as whole.
void divide_parameters(const ShardedModel& model, checkpoint::DividedTensors& divided);

// Gives `whole` the states of all ranks: placeholders for those of parameters that are in `divided`, where this rank's parts
// are noted, else values. Throws kPeerLost, kProcessGroup. Requires: every rank calls it.
void describe_states(torch::optim::Optimizer& optimizer,
                     const ShardedOptimizer& sharded,
                     torch::optim::Optimizer& whole,
                     checkpoint::DividedTensors& divided);

// Gives `optimizer` this rank's part of the states of `whole`, and its options.
void take_states(torch::optim::Optimizer& whole,
                 const ShardedOptimizer& sharded,
                 const checkpoint::DividedTensors& divided,
                 torch::optim::Optimizer& optimizer);

}  // namespace accel::sharding
