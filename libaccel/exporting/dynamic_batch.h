// DynamicBatch: one graph for any size of the batch, from traces of several sizes.
//
// A trace has numbers where the module computed with sizes. Traces at the sizes n, n + 1 and 2n + 1 have to be the same graph but for
// integers, and each integer that differs has to be a + k * batch: the first two traces give a and k, the third proves them. In the
// graph such an integer is computed from the size of an input. So what a module decides by the size of its batch is an error, as
// far as one of the sizes shows it.
//
// Threads:  pure functions.
// Source:   docs/guides/exporting-models.md.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "libaccel/exporting/traced_graph.h"

namespace accel::exporting {

// Which axis of an input is the batch.
using BatchAxes = std::map<std::string, std::int64_t>;

struct SizedTrace {
  std::int64_t batch = 0;
  TracedGraph traced;
};

// The input with a batch of another size: its rows from the front, over and over.
[[nodiscard]] at::Tensor with_batch(const at::Tensor& input, std::int64_t axis, std::int64_t batch);

// traces: at least three, the first one that of the example. least: the smallest batch that the graph is for.
// Throws kUnsupported, naming the node, where they are not one graph.
[[nodiscard]] TracedGraph with_dynamic_batch(std::vector<SizedTrace> traces,
                                             const BatchAxes& axes,
                                             std::int64_t least);

}  // namespace accel::exporting
