// TraceCheck: whether a graph computes what the module computes.
//
// A trace has the operators that it saw, and nothing of what the module does besides: a loop over data_ptr(), a decision on a value
// that was read so, work that another thread did. So the graph is run beside the module, with the same random numbers: on the
// example, and on the example with its values in reverse order, which changes what a decision sees. Compared are the outputs, the
// gradients of parameters and the buffers afterwards.
//
// Threads:  the one that traces.
// Cost:     two forwards and backwards of the module, and two of the graph.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "libaccel/exporting/module_tensors.h"
#include "libaccel/exporting/traced_graph.h"

namespace accel::exporting {

using Forward = std::function<std::vector<at::Tensor>(const std::vector<at::Tensor>&)>;

// Throws kUnsupported, naming what differs first and by how much. Buffers and the random generators are changed.
// A module that throws for the reversed example is compared on the example alone.
void check_trace(const TracedGraph& traced,
                 const std::vector<ModuleTensor>& tensors,
                 const Forward& forward,
                 const std::vector<at::Tensor>& inputs);

}  // namespace accel::exporting
