// Report: how a job ended, in the words of the person who started it.
//
// The first failing rank comes first, with its cause and its last lines; the other ranks are
// counted as consequences. At most six lines besides the tail, in the form of
// accel::Error::render().
//
// Threads:  pure functions.
#pragma once

#include <string>
#include <vector>

#include "runtime/supervisor/protocol/job_outcome.h"

namespace accel::launcher {

struct ReportStyle {
  bool color = false;         // the caller knows whether it writes to a terminal
  bool is_on_screen = false;  // what the only rank printed stands right above
  std::string program = "accel-launch";
  std::vector<std::string> names =
      {};  // of processes that start the ranks, as mpirun; may be empty
  std::vector<std::string> hosts = {};  // each process is an ssh to one; may be empty
};

// The text for stderr with a newline at its end. Empty when the job succeeded and left nothing to
// say (no leftovers, no notices).
[[nodiscard]] std::string render_report(const supervisor::JobOutcome& outcome,
                                        int num_workers,
                                        const ReportStyle& style);

}  // namespace accel::launcher
