// ClusterLibrary: opens libaccel_cluster.so, the part of the launcher that speaks gRPC, only when a command needs it.
//
// Threads:  one thread.
#pragma once

#include <string>
#include <vector>

#include <accel/result.h>

#include "launcher/cluster_entry/etcd_seat.h"
#include "launcher/cluster_entry/token_functions.h"

namespace accel::launcher {

// The command of accel-launch itself; its argument is the JSON of elastic_settings.h.
inline constexpr const char* kElasticCommand = "elastic-launch";

// Runs a command of the cluster part; `arguments` begins with the command's name. Gives the exit status.
// Errors  kClusterMissing.
[[nodiscard]] Result<int> run_cluster_command(const std::vector<std::string>& arguments);

// Good for the life of the process. Cost: some ten milliseconds, for gRPC is loaded with them.
// Errors  kClusterMissing.
[[nodiscard]] Result<const TokenFunctions*> load_token_functions();
[[nodiscard]] Result<const EtcdFunctions*> load_etcd_functions();

}  // namespace accel::launcher
