// Which buffers of a model its graph writes.
//
// Threads:  a pure function, but for the table of operators.
#pragma once

#include <set>
#include <string>

#include "libaccel/exported/graph.h"

namespace accel::exported {

// Those that an operator writes in place, itself or through a view, and those whose new values are outputs. Of operators that nobody
// has described (higher-order ones, the program's own), all buffers that they are given. A constant that is written counts: without
// `strict`, torch.export makes one of a tensor that the module reaches by more than its name, as caches of transformers.
[[nodiscard]] std::set<std::string> written_buffers(const ExportedGraph& graph);

}  // namespace accel::exported
