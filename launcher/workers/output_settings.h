// OutputSettings: where the output of workers goes, as the flags say it.
//
// Threads:  pure functions.
#pragma once

#include <string>
#include <vector>

#include "launcher/flags/flags.h"
#include "launcher/text/faults.h"
#include "runtime/supervisor/protocol/job_spec.h"

namespace accel::launcher {

struct OutputSettings {
  std::string log_dir;  // empty: no files
  supervisor::LogRotation rotation;
  supervisor::Overflow overflow = supervisor::Overflow::kBlock;
  std::vector<supervisor::Streams> tee;       // one per worker
  std::vector<supervisor::Streams> redirect;  // one per worker
};

// `num_workers` are those of this machine. Faults (kInvalidArgument, kUsage) are added.
[[nodiscard]] OutputSettings choose_output(const CommandLine& line,
                                           int num_workers,
                                           std::vector<std::string>& notices,
                                           Faults& faults);

}  // namespace accel::launcher
