// Panels: what `accel plot` and the dashboard draw: a panel for each metric, a curve in it for each run.
//
// Threads:  pure.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include <accel/result.h>

#include "launcher/curves/run_log.h"

namespace accel::launcher {

enum class CurveAxis { kStep, kTime };

struct PanelOptions {
  std::vector<std::string> metrics;  // names, or patterns with * and ?; empty: all
  CurveAxis axis = CurveAxis::kStep;
  double smooth = 0;  // 0 to below 1: the weight of what came before, as TensorBoard's slider
};

struct CurvePoint {
  double x = 0;
  double y = 0;  // NaN: a gap
};

struct Curve {
  std::size_t run = 0;             // index of its run
  std::vector<CurvePoint> points;  // at least one, with a number
  std::vector<CurvePoint> smooth;  // empty: as they are
};

struct Panel {
  std::string metric;
  std::vector<Curve> curves;  // by run
};

struct Panels {
  std::vector<Panel> panels;  // by name of metric
  std::string x_label;        // "step", "time (min)"
};

// Over steps, a step has one value, the last one: a run that went back (a restart from a checkpoint) has those of the steps that it did
// again. Over time, all values stay, and seconds count from each run's first entry, in the unit that fits the longest.
// Errors  kInvalidArgument: no metric fits one of the patterns (names those that are there); nothing has a number; no times in
//         the files.
[[nodiscard]] Result<Panels> panels_of(const std::vector<RunLog>& runs,
                                       const PanelOptions& options);

// Of the points in one column of that width the first, the lowest, the highest and the last one: all that is seen of them. Gaps
// stay.
[[nodiscard]] std::vector<CurvePoint> without_unseen(const std::vector<CurvePoint>& points,
                                                     double column_width);

// An exponential moving average, corrected for its beginning: s_i = (w s_(i-1) + (1 - w) y_i), shown as s_i / (1 - w^(i+1)). Gaps
// stay, and count for nothing.
[[nodiscard]] std::vector<CurvePoint> smoothed(const std::vector<CurvePoint>& points,
                                               double weight);

}  // namespace accel::launcher
