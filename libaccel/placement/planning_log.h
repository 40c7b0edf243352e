// PlanningLog: what planning tells its user. Models are planned before there is an Accelerator too, and then loggers know no rank.
//
// Threads:  any.
#pragma once

#include <cstdio>
#include <string>

#include <accel/logging.h>
#include <accel/state.h>

namespace accel::placement {

// On the main process; on stderr when there is no state yet.
inline void warn(const std::string& text) {
  if (PartialState::initialized()) {
    get_logger("accel.placement").warning(text);
  } else {
    std::fprintf(stderr, "accel: warning: %s\n", text.c_str());
  }
}

// Only where loggers are.
inline void inform(const std::string& text) {
  if (PartialState::initialized()) get_logger("accel.placement").info(text);
}

}  // namespace accel::placement
