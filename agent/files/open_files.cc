#include "agent/files/open_files.h"

#include <algorithm>
#include <climits>

#include <fcntl.h>
#include <sys/resource.h>

#include "runtime/supervisor/metrics/process_metrics.h"

namespace accel::agent {

int open_files_left() {
  rlimit files{};
  if (::getrlimit(RLIMIT_NOFILE, &files) != 0 || files.rlim_cur > INT_MAX) return INT_MAX;
  return std::max(0, static_cast<int>(files.rlim_cur) - supervisor::count_open_files());
}

int null_device() {
  static const int fd = ::open("/dev/null", O_RDWR | O_CLOEXEC);
  return fd;
}

}  // namespace accel::agent
