#include "agent/config/node_address.h"

#include <algorithm>
#include <cctype>
#include <filesystem>

#include <sched.h>
#include <unistd.h>

#include "runtime/system.h"

namespace accel::agent {

std::string own_address_towards(const supervisor::TcpEndpoint& endpoint) {
  const auto source = supervisor::source_towards(endpoint);
  return (source ? *source : endpoint.address()).to_string();
}

std::string boot_id() {
  const auto read = real_system().read_file("/proc/sys/kernel/random/boot_id");
  std::string text = read ? *read : "";
  while (text.ends_with('\n')) text.pop_back();
  return text;
}

int count_slots() {
  int num_gpus = 0;
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator("/dev", ignored)) {
    const std::string name = entry.path().filename().string();
    const std::string number = name.starts_with("nvidia") ? name.substr(6) : "";
    const bool is_gpu = !number.empty() && std::all_of(number.begin(), number.end(), [](char c) {
      return std::isdigit(static_cast<unsigned char>(c)) != 0;
    });
    num_gpus += is_gpu ? 1 : 0;
  }
  if (num_gpus > 0) return num_gpus;
  cpu_set_t cores;
  CPU_ZERO(&cores);
  if (::sched_getaffinity(0, sizeof cores, &cores) == 0) return std::max(1, CPU_COUNT(&cores));
  return std::max(1, static_cast<int>(::sysconf(_SC_NPROCESSORS_ONLN)));
}

}  // namespace accel::agent
