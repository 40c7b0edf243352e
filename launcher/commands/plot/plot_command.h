// PlotCommand: `accel plot RUN...`, the curves of runs on the terminal or as SVG.
#pragma once

#include <string>
#include <vector>

namespace accel::launcher {

// Returns the exit status.
[[nodiscard]] int plot_command(const std::vector<std::string>& arguments);

}  // namespace accel::launcher
