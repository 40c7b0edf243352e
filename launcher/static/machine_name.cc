#include "launcher/static/machine_name.h"

#include <random>
#include <string_view>

#include <unistd.h>

namespace accel::launcher {

std::string own_host_name() {
  char name[256] = {};
  return ::gethostname(name, sizeof name - 1) == 0 && name[0] != '\0' ? name : "localhost";
}

std::string draw_launcher_id() {
  constexpr std::string_view kDigits = "0123456789abcdef";
  constexpr std::size_t kLength = 32;
  std::random_device source;
  std::string id;
  while (id.size() < kLength) id += kDigits[source() % kDigits.size()];
  return id;
}

}  // namespace accel::launcher
