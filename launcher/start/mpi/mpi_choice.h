// MpiChoice: whether a launch goes through mpirun, from flags and configuration file.
//
// As under the peer, --mpirun_hostfile or mpirun_config of a file decide, for launches that no flag and
// no distributed_type gives to another way of starting workers.
//
// Threads:  pure functions.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "launcher/config/config_file.h"
#include "launcher/flags/flags.h"
#include "launcher/text/faults.h"

namespace accel::launcher {

// The hostfile, or std::nullopt without mpirun. A flag that cannot hold is a fault, a key that does not
// a notice.
[[nodiscard]] std::optional<std::string> mpi_hostfile(const CommandLine& line,
                                                      const ConfigFile* file,
                                                      std::vector<std::string>& notices,
                                                      Faults& faults);

}  // namespace accel::launcher
