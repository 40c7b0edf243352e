// UndividedState: what every rank has whole, with the values of rank 0: frozen parameters, those of ignored modules, buffers.
//
// Threads:  the thread that trains. Every rank calls these, for the same tensors.
// Errors    throws what ProcessGroup throws.
#pragma once

#include <ATen/core/Tensor.h>

#include "libaccel/engine/settings/fsdp_settings.h"

namespace torch::nn {
class Module;
}
namespace accel {
class ProcessGroup;
}

namespace accel::sharding {

// Gives the tensor the values of rank 0, and memory where it has none. Leaves it alone when it was a parameter of a divided
// model that is gone: then all ranks have the same, in memory that they may only read.
void take_from_rank_0(at::Tensor& tensor, ProcessGroup& group);

// Of a model without a parameter to train, a teacher or reference: compares it on all ranks, and takes its parameters and
// buffers from rank 0 unless settings.sync_module_states is false; those that are not dense stay each rank's own. Throws
// kShapeMismatch on every rank naming the first tensor that differs; kUnsupported naming a parameter that is divided now, in
// a model that is still there. Cost: a broadcast of each tensor.
void send_frozen_model(const torch::nn::Module& module,
                       const FsdpSettings& settings,
                       ProcessGroup& group);

}  // namespace accel::sharding
