// SpecFile: a JobSpec as a JSON file, for `accel run --spec`.
//
// The names are those of proto/accel/v1/job.proto: {"affinity": {"mode": "MODE_L3"}, "stop": {"grace": "10s"}}.
#pragma once

#include <string>

#include <accel/result.h>

#include "accel/v1/job.pb.h"

namespace accel::cluster {

// Errors  kConfigUnreadable; kConfigInvalidValue: what is wrong and where, as Protobuf says it.
[[nodiscard]] Result<v1::JobSpec> read_spec_file(const std::string& path);

}  // namespace accel::cluster
