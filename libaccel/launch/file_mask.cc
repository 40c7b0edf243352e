#include "libaccel/launch/file_mask.h"

#include <cstdlib>
#include <fstream>
#include <string>
#include <string_view>

namespace accel::launch {

std::optional<mode_t> own_file_mask() {
  constexpr std::string_view kName = "Umask:";
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with(kName))
      return static_cast<mode_t>(std::strtoul(line.c_str() + kName.size(), nullptr, 8));
  }
  return std::nullopt;
}

}  // namespace accel::launch
