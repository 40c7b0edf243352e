// ParameterMemory: who else uses the memory of parameters that are to be divided. prepare() gives these other memory, so what
// shared theirs would keep the values of before.
//
// Threads:  the thread that trains.
#pragma once

#include <vector>

#include "libaccel/tensors/parameter_list.h"

namespace torch::nn {
class Module;
}

namespace accel::sharding {

// Throws kUnsupported naming both where two of these parameters are of one memory, or where another parameter of the module
// (frozen, ignored) or a buffer overlaps one of them without being the same tensor.
void refuse_overlaps(const std::vector<NamedParameter>& divided, const torch::nn::Module& module);

// Throws kUnsupported naming a module whose forward writes to one of these parameters: an embedding with max_norm.
void refuse_writing_forwards(const std::vector<NamedParameter>& divided,
                             const torch::nn::Module& module);

// Warns once, on rank 0, naming the first of these parameters whose memory is used by a tensor outside of the module: a view
// or detach() of the user's.
void warn_of_views(const std::vector<NamedParameter>& divided, const torch::nn::Module& module);

}  // namespace accel::sharding
