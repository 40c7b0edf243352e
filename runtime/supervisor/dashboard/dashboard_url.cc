#include "runtime/supervisor/dashboard/dashboard_url.h"

#include <cerrno>
#include <string_view>

#include <fcntl.h>
#include <unistd.h>

#include "runtime/unique_fd.h"
#include "runtime/write_all.h"

namespace accel::supervisor {

Result<void> write_dashboard_url(const std::string& path, const std::string& url) {
  ::unlink(path.c_str());
  const UniqueFd file(
      ::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600));
  const std::string line = url + "\n";
  std::string_view left = line;
  if (file && write_all(file.get(), left) == 0) return {};
  return Error(ErrorCode::kFileIo, "cannot write " + path + ": " + errno_text(errno));
}

}  // namespace accel::supervisor
