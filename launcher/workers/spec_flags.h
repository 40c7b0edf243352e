// SpecFlags: torchrun's flags that change what single workers see, and where lines of theirs go.
//
//   --virtual_local_rank          LOCAL_RANK is 0 for all, and CUDA_VISIBLE_DEVICES the one device of the worker
//   --duplicate_stdout_filters    lines of teed streams with one of the texts also go to filtered_stdout.log
//   --duplicate_stderr_filters
//
// Threads:  pure functions.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include <accel/result.h>

#include "launcher/flags/flags.h"
#include "runtime/supervisor/protocol/job_spec.h"

namespace accel::launcher {

// "a,b,,c" -> "a", "b,c": a double comma stands for a comma, as in torchrun.
[[nodiscard]] std::vector<std::string> split_filters(std::string_view text);

enum class WorkerPlace {
  kHere,       // this launcher's own supervisor starts them
  kElsewhere,  // agents, nodes that meet, mpirun or other hosts do
};

// Errors  kInvalidArgument: fewer devices in CUDA_VISIBLE_DEVICES than workers; kUnsupported: workers elsewhere.
[[nodiscard]] Result<void> apply_spec_flags(const CommandLine& line,
                                            WorkerPlace place,
                                            supervisor::JobSpec& spec,
                                            std::vector<std::string>& notices);

}  // namespace accel::launcher
