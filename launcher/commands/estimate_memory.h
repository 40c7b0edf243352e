// `accel estimate-memory`: what a model takes to load and to train, as a table or as JSON.
#pragma once

#include <string>
#include <vector>

#include "checkpoint_tools/models/memory_estimate.h"

namespace accel::launcher {

// The exit status. Arguments are what stands after the name of the command.
int estimate_memory_command(const std::vector<std::string>& arguments);

// The table of the peer, in its words. Pure.
[[nodiscard]] std::string render_table(const ModelInventory& model,
                                       const std::vector<MemoryRow>& rows);

}  // namespace accel::launcher
