// WholeOptimizer: the optimizer of sharded models as one process would have it, for checkpoints.
//
// A checkpoint of a sharded run is that of any other run: it goes on with another number of ranks, another strategy, or
// copies. So its states are named and shaped as those of whole parameters; but no rank holds them. A whole optimizer has
// placeholders for them, and a table (tensors/divided_tensors.h) says what this rank has of each: its own pieces.
//
// Threads:  the thread that trains.
// Cost:     one small all-reduce for each unit. States of parameters whose memory is not in row-major order are gathered.
#pragma once

#include <memory>

#include <ATen/core/Tensor.h>

#include "libaccel/engine/sharding/master_shards.h"

namespace torch::optim {
class Optimizer;
}

namespace accel::checkpoint {
class DividedTensors;
}

namespace accel::sharding {

class ShardedModel;
class ShardedOptimizer;

// An optimizer of the same type, options and groups on the whole parameters, without states; for a class of the user's own what
// stands for it (engine/checkpoint/states/archived_optimizer.h). Errors  throws kUnsupported, naming such a class whose states cannot be saved.
[[nodiscard]] std::unique_ptr<torch::optim::Optimizer> whole_optimizer(
    torch::optim::Optimizer& optimizer, const ShardedOptimizer& sharded);

// Notes this rank's pieces of the model's parameters. Left out are those whose memory is not in row-major order: they count
// as whole.
void divide_parameters(const ShardedModel& model, checkpoint::DividedTensors& divided);

// Gives `whole` the states of all ranks: placeholders for those of parameters that are in `divided`, where this rank's parts
// are noted, else values. wholes: of those values; where they are dropped `whole` gets no state of them. Throws kPeerLost,
// kProcessGroup. Requires: every rank calls it.
void describe_states(torch::optim::Optimizer& optimizer,
                     const ShardedOptimizer& sharded,
                     torch::optim::Optimizer& whole,
                     checkpoint::DividedTensors& divided,
                     Wholes wholes);

// [numel] of a tensor without gaps. Borrowed.
[[nodiscard]] at::Tensor in_memory_order(const at::Tensor& tensor);

// The part of a whole tensor that a piece of `parameter` stands for: a range in the order of the parameter's memory.
[[nodiscard]] at::Tensor part_of(const at::Tensor& whole,
                                 const at::Tensor& parameter,
                                 const Piece& place);

// Gives `optimizer` this rank's part of the states of `whole`, and its options.
void take_states(torch::optim::Optimizer& whole,
                 const ShardedOptimizer& sharded,
                 const checkpoint::DividedTensors& divided,
                 torch::optim::Optimizer& optimizer);

}  // namespace accel::sharding
