// PlotScale: the range of an axis, and where its ticks are.
//
// Threads:  pure.
#pragma once

#include <string>
#include <vector>

#include "launcher/curves/panels.h"

namespace accel::launcher {

struct PlotScale {
  double low = 0;
  double high = 1;  // above low

  // 0 at low, 1 at high.
  [[nodiscard]] double place(double value) const { return (value - low) / (high - low); }
};

// x and y of what is drawn of a panel: all points, and the smoothed ones. A range of nothing is widened around its value.
struct PanelScales {
  PlotScale x;
  PlotScale y;
};
[[nodiscard]] PanelScales scales_of(const Panel& panel);

struct PlotTick {
  double value = 0;
  std::string label;
};

// At 1, 2 or 5 times a power of ten, at most `most` + 1 of them, within the range. Labels have as many digits as tell them apart.
[[nodiscard]] std::vector<PlotTick> ticks_of(const PlotScale& scale, int most);

// With at most `digits` significant digits, as printf's %g, in every locale.
[[nodiscard]] std::string short_number(double value, int digits);

}  // namespace accel::launcher
