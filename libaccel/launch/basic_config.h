// BasicConfig: the text of a first configuration.
//
// Threads:  pure functions.
#pragma once

#include <string>

#include <accel/env_contract.h>

namespace accel::launch {

// The peer's ClusterConfig for one machine, as its to_json_file() writes it: members that are not None, sorted, two
// spaces, a newline at the end.
[[nodiscard]] std::string basic_config_text(const std::string& mixed_precision, int num_gpus);

}  // namespace accel::launch
