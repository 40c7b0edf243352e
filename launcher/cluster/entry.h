// The entry points of libaccel_cluster.so; see launcher/cluster_entry/cluster_library.h for who opens it.
#pragma once

#include "launcher/cluster_entry/etcd_seat.h"
#include "launcher/cluster_entry/token_functions.h"
#include "launcher/start/elastic/elastic_settings.h"

// `argv` as of a program: argv[1] is the command. Gives the exit status.
extern "C" int accel_cluster_main(int argc, const char* const* argv);

// Loads gRPC's code with it, and starts nothing of it.
extern "C" const accel::launcher::TokenFunctions* accel_cluster_token_functions();

// The same.
extern "C" const accel::launcher::EtcdFunctions* accel_cluster_etcd_functions();

namespace accel::cluster {

// accel-launch over several nodes or by an agent; `request` is the JSON of launcher/start/elastic/elastic_settings.h. Gives the
// exit status.
int launch_elastic(const char* request);

// accel-launch --agent: gives the job to the agent of this machine and follows it. Gives the exit status.
int launch_by_agent(const launcher::ElasticRequest& request);

}  // namespace accel::cluster
