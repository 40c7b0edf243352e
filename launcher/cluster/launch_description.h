// LaunchDescription: what the coordinator must know of a launch; the program stays with each node.
//
// Threads:  a pure function.
#pragma once

#include <chrono>

#include "accel/v1/job.pb.h"
#include "launcher/elastic_settings.h"

namespace accel::cluster {

// How long workers go on without a coordinator that lives in another launcher: it will not come back.
inline constexpr std::chrono::seconds kControlLossGrace{10};

[[nodiscard]] v1::JobSpec describe_launch(const launcher::ElasticRequest& request);

}  // namespace accel::cluster
