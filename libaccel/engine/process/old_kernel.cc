#include "libaccel/engine/process/old_kernel.h"

#include <array>
#include <cstddef>
#include <cstdio>

namespace accel {

std::optional<std::string> old_kernel_notice(std::string_view release) {
  constexpr std::array<int, 3> kMinimum{5, 5, 0};
  std::array<int, 3> version{};
  const std::string text(release);
  if (std::sscanf(text.c_str(), "%d.%d.%d", &version[0], &version[1], &version[2]) < 2 ||
      version >= kMinimum)
    return std::nullopt;
  const std::size_t end = text.find_first_not_of("0123456789.");
  return "Detected kernel version " + text.substr(0, end) +
         ", which is below the recommended minimum of 5.5.0; this can cause the process to hang. "
         "It is recommended to "
         "upgrade the kernel to the minimum version or higher.";
}

}  // namespace accel
