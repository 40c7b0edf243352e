// launch_elastic: accel-launch over several nodes or by an agent.
//
// Threads:  the calling one runs a loop; gRPC has some of its own.
#pragma once

namespace accel::cluster {

// `request` is the JSON of launcher/start/elastic/elastic_settings.h. Gives the exit status.
int launch_elastic(const char* request);

}  // namespace accel::cluster
