// GraphText: a traced graph as the JSON text that torch.export.load() and libaccel/exported/graph_reader.h read.
//
// Threads:  pure functions. The same graph always gives the same text.
// Source:   torch/_export/serde/schema.py of torch 2.11, version 8.17.
#pragma once

#include <string>
#include <vector>

#include "libaccel/exporting/traced_graph.h"

namespace accel::exporting {

// A tensor of the archive beside the graph: its name, its form and where its bytes are.
struct StoredTensor {
  std::string name;
  std::string path;  // "weight_0"
  bool is_parameter = false;
  TensorMeta meta;
};

// What the program that reads the graph gets: one tensor, a tuple, or a dict with the outputs' names as keys.
enum class OutputForm { kTensor, kTuple, kDict };

[[nodiscard]] std::string graph_text(const TracedGraph& traced, OutputForm form);

// The table of weights or constants, in this order.
[[nodiscard]] std::string payload_text(const std::vector<StoredTensor>& tensors);

}  // namespace accel::exporting
