#include "launcher/start/machines/machine_name.h"

#include <unistd.h>

#include "runtime/text/random_digits.h"

namespace accel::launcher {

std::string own_host_name() {
  char name[256] = {};
  return ::gethostname(name, sizeof name - 1) == 0 && name[0] != '\0' ? name : "localhost";
}

std::string draw_launcher_id() {
  return random_digits(32);
}

}  // namespace accel::launcher
