// Fsdp2Conversion: a configuration of FSDP 1 in the words of FSDP 2.
#pragma once

#include <string>
#include <vector>

#include <accel/result.h>

#include "launcher/documents/config_document.h"

namespace accel::launcher {

struct Fsdp2Conversion {
  ConfigValue::Map document;
  std::vector<std::string> notices;  // what was left out, or why nothing was done
};

// fsdp_config in the form of FSDP 2, as `accelerate to-fsdp2` gives it; everything else, and keys that are not known,
// unchanged. A document without FSDP, or with fsdp_version 2, comes back as it is, with a notice; so do keys that are given twice. Pure.
// Errors  kConfigInvalidValue: a strategy or a version that is none (the line and what is expected).
[[nodiscard]] Result<Fsdp2Conversion> convert_to_fsdp2(ConfigValue::Map document);

}  // namespace accel::launcher
