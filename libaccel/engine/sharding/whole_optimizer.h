// WholeOptimizer: the optimizer of sharded models as one process would have it, for checkpoints.
//
// A checkpoint of a sharded run is that of any other run: it goes on with another number of ranks, another strategy, or
// copies. So its states are named and shaped as those of whole parameters; but no rank holds them. A whole optimizer has
// placeholders for them, and a table (tensors/divided_tensors.h) says what this rank has of each: its own pieces. A
// ShardedOptimizer makes it; those members are implemented here.
//
// Threads:  the thread that trains.
// Cost:     one small all-reduce for each unit. States of parameters whose memory is not in row-major order are gathered.
#pragma once

#include <ATen/core/Tensor.h>

#include "libaccel/tensors/unit_layout.h"

namespace accel::sharding {

// [numel] of a tensor without gaps. Borrowed.
[[nodiscard]] at::Tensor in_memory_order(const at::Tensor& tensor);

// The part of a whole tensor that a piece of `parameter` stands for: a range in the order of the parameter's memory.
[[nodiscard]] at::Tensor part_of(const at::Tensor& whole,
                                 const at::Tensor& parameter,
                                 const Piece& place);

}  // namespace accel::sharding
