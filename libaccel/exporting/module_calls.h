// ModuleCalls: in which submodule's forward each node of a trace was.
//
// torch::nn has no hooks around forward, so this is concluded from the parameters: a node that takes a parameter or buffer, or what
// was computed from those of one module alone, is of the module that has it. Nodes between two such are of the innermost module
// that both are in. So a residual addition at the end of a block counts for what is around the block, and an activation for the
// Sequential that it is in; a module without parameters has no nodes, a buffer of the model that a block
// takes ends the block's call and begins another, and a tied parameter counts for the module that has it first.
//
// Threads:  pure functions.
#pragma once

#include <map>
#include <string>

#include "libaccel/exported/graph.h"
#include "libaccel/exporting/module_tensors.h"

namespace accel::exporting {

// Fills in Node::calls. A module that is called again has "@1" behind its path, and so on, as torch.export writes it.
void add_module_calls(exported::ExportedGraph& graph,
                      const std::map<std::string, ModulePart>& parts);

}  // namespace accel::exporting
