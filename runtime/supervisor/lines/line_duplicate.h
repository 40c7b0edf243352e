// LineDuplicate: where lines of a stream go besides its own file, and which.
#pragma once

#include <memory>

#include "runtime/supervisor/lines/filtered_log.h"
#include "runtime/supervisor/lines/line_filter.h"

namespace accel::supervisor {

struct LineDuplicate {
  LineFilter filter;
  std::shared_ptr<FilteredLog> log;
};

}  // namespace accel::supervisor
