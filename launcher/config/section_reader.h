// SectionReader: the map of a strategy in a configuration file (`fsdp_config`), checked against its table.
//
// Threads:  pure functions.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "launcher/documents/config_document.h"
#include "launcher/documents/file_notice.h"
#include "launcher/flags/strategies/option.h"
#include "launcher/text/faults.h"

namespace accel::launcher {

// What files say of options, by the name of the flag, as the variable wants it.
using OptionValues = std::map<std::string, std::string, std::less<>>;

// Adds to `values` what `map` says. Unknown and repeated keys and names of other versions become notices;
// a value that does not fit becomes a fault (kConfigInvalidValue: path, line, key, value, what was expected).
void read_section(const Strategy& strategy,
                  const ConfigValue::Map& map,
                  const std::string& path,
                  OptionValues& values,
                  std::vector<FileNotice>& notices,
                  Faults& faults);

}  // namespace accel::launcher
