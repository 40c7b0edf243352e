// NodeSettings: what the command line and SLURM say about jobs of several nodes.
//
// Threads:  pure functions.
#pragma once

#include <optional>
#include <string>

#include "launcher/flags/flags.h"
#include "launcher/start/elastic/elastic_settings.h"
#include "launcher/start/slurm/slurm_nodes.h"
#include "launcher/text/faults.h"

namespace accel::launcher {

// What SLURM says about this process; `place` is empty outside of it.
struct SlurmView {
  std::optional<SlurmPlace> place;
  std::string starter_folder;  // of kSlurmFolderVariable
  std::string unique;          // see SlurmRequest
};

// Flags that say how several nodes meet, beside --nnodes.
inline constexpr const char* kMeetingFlags[] = {"rdzv_endpoint",
                                                "rdzv_id",
                                                "rdzv_token_file",
                                                "rdzv_tls_dir",
                                                "rdzv_insecure",
                                                "fencing",
                                                "lease"};

// Empty: a launch on one machine. Faults are added.
[[nodiscard]] std::optional<ElasticSettings> choose_nodes(const CommandLine& line,
                                                          const SlurmView& slurm,
                                                          Faults& faults);

}  // namespace accel::launcher
