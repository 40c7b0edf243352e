// Fsdp2Conversion: a configuration of FSDP 1 in the words of FSDP 2.
#pragma once

#include <string>
#include <vector>

#include "launcher/config_document.h"

namespace accel::launcher {

struct Fsdp2Conversion {
  ConfigValue::Map document;
  std::vector<std::string> notices;  // what was left out, or why nothing was done
};

// fsdp_config in the form of FSDP 2, as `accelerate to-fsdp2` gives it; everything else, and keys that are not known,
// unchanged. A document without FSDP, or with fsdp_version 2, comes back as it is, with a notice. Pure.
[[nodiscard]] Fsdp2Conversion convert_to_fsdp2(ConfigValue::Map document);

}  // namespace accel::launcher
