// NoticeLine: a line for people, on stderr.
//
// Threads:  any.
#pragma once

#include <cstdio>
#include <string>

#include "runtime/printable.h"

namespace accel::launcher {

// "accel-launch: line", in a form that a terminal shows; nothing for an empty line.
inline void tell(const std::string& program, const std::string& line) {
  if (!line.empty()) std::fprintf(stderr, "%s: %s\n", program.c_str(), printable(line).c_str());
}

}  // namespace accel::launcher
