// SvgPicture: curves as an SVG file: a panel for each metric, a colour for each run, light or dark as the viewer is.
//
// The same runs give the same bytes. Names are escaped; control characters in them, and what XML may not hold, become '?'.
//
// Threads:  pure.
// Cost:     at most four points a curve for each of the 700 columns, however many were logged.
// Source:   SVG 1.1; tests/integration/plot draws the pictures in Chromium.
#pragma once

#include <string>
#include <vector>

#include "launcher/curves/panels.h"

namespace accel::launcher {

// run_names: by the index of a run. Requires: at least one panel.
[[nodiscard]] std::string svg_picture(const Panels& panels,
                                      const std::vector<std::string>& run_names);

}  // namespace accel::launcher
