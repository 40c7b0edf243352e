#include "launcher/devices/machine_cores.h"

#include <algorithm>
#include <fstream>
#include <set>
#include <string>
#include <string_view>

#include "runtime/text/number_text.h"

namespace accel::launcher {
namespace {

namespace fs = std::filesystem;

// "cpu12", not "cpufreq".
bool is_cpu(std::string_view name) {
  constexpr std::string_view kPrefix = "cpu";
  return name.starts_with(kPrefix) && is_digits(name.substr(kPrefix.size()));
}

// Empty: it has none, because it is off.
std::string siblings_of_cpu(const fs::path& cpu) {
  std::string line;
  for (const char* name : {"core_cpus_list", "thread_siblings_list"}) {
    std::ifstream file(cpu / "topology" / name);
    if (std::getline(file, line)) return line;
  }
  return "";
}

}  // namespace

int num_machine_cores(const fs::path& folder) {
  std::set<std::string> cores;
  std::error_code failure;
  for (fs::directory_iterator entry(folder, failure), end; !failure && entry != end;
       entry.increment(failure)) {
    if (!is_cpu(entry->path().filename().string())) continue;
    if (std::string siblings = siblings_of_cpu(entry->path()); !siblings.empty())
      cores.insert(std::move(siblings));
  }
  return std::max(1, static_cast<int>(cores.size()));
}

}  // namespace accel::launcher
