#include "runtime/supervisor/metrics/process_metrics.h"

#include <algorithm>
#include <climits>
#include <cstdlib>
#include <fstream>
#include <sstream>
#include <string>

#include <dirent.h>
#include <sys/resource.h>
#include <unistd.h>

namespace accel::supervisor {
namespace {

// Ticks after the boot at which this process began: the 22nd field of stat, the 20th after its name.
double start_time() {
  std::ifstream own("/proc/self/stat");
  std::string text;
  std::getline(own, text);
  std::istringstream fields(text.substr(std::min(text.size(), text.rfind(')') + 1)));
  std::string field;
  for (int i = 0; i < 20; ++i) fields >> field;
  std::ifstream system("/proc/stat");
  for (std::string line; std::getline(system, line);) {
    if (!line.starts_with("btime ")) continue;
    return std::strtod(line.c_str() + 6, nullptr) +
           std::strtod(field.c_str(), nullptr) / static_cast<double>(::sysconf(_SC_CLK_TCK));
  }
  return 0;
}

}  // namespace

int count_open_files() {
  rlimit files{};
  DIR* folder = ::opendir("/proc/self/fd");
  // Not even one more can be opened, or there is no /proc: as many as there may be.
  if (folder == nullptr)
    return ::getrlimit(RLIMIT_NOFILE, &files) == 0
               ? static_cast<int>(std::min<rlim_t>(files.rlim_cur, INT_MAX))
               : 0;
  int count = -3;  // ".", ".." and the folder itself
  while (::readdir(folder) != nullptr) ++count;
  ::closedir(folder);
  return count;
}

void add_process(MetricPage& page) {
  rusage used{};
  ::getrusage(RUSAGE_SELF, &used);
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) / 1e6;
  };
  page.add(Metric::kProcessCpu, {}, seconds(used.ru_utime) + seconds(used.ru_stime));
  std::ifstream statm("/proc/self/statm");
  double size = 0;
  double resident = 0;
  if (statm >> size >> resident) {
    page.add(Metric::kProcessMemory, {}, resident * static_cast<double>(::sysconf(_SC_PAGESIZE)));
  }
  page.add(Metric::kProcessOpenFds, {}, count_open_files());
  rlimit files{};
  if (::getrlimit(RLIMIT_NOFILE, &files) == 0)
    page.add(Metric::kProcessMaxFds, {}, static_cast<double>(files.rlim_cur));
  static const double kStart = start_time();
  page.add(Metric::kProcessStart, {}, kStart);
}

}  // namespace accel::supervisor
