// ProcessMetrics: what the kernel says of this process.
//
// Threads:  any; reads /proc of this process, nothing else.
// Source:   docs/reference/metrics.md.
#pragma once

#include "runtime/supervisor/metrics/metric_page.h"

namespace accel::supervisor {

// Cost: one look at each open file. The limit where there is no /proc, or no file left to look with.
[[nodiscard]] int count_open_files();

void add_process(MetricPage& page);

}  // namespace accel::supervisor
