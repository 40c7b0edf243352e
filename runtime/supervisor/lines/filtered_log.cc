#include "runtime/supervisor/lines/filtered_log.h"

#include <cerrno>
#include <string>
#include <system_error>
#include <utility>

#include <fcntl.h>
#include <unistd.h>

#include <accel/error.h>

#include "runtime/write_all.h"

namespace accel::supervisor {

void FilteredLog::open() {
  const std::lock_guard lock(mutex_);
  if (std::exchange(is_opened_, true)) return;
  std::error_code ignored;  // open() says what is wrong
  std::filesystem::create_directories(path_.parent_path(), ignored);
  file_.reset(::open(path_.c_str(),
                     O_WRONLY | O_CREAT | O_TRUNC | O_APPEND | O_CLOEXEC | O_NOFOLLOW | O_NOCTTY,
                     0644));
  if (!file_) fail(errno);
}

void FilteredLog::append(std::string_view lines) {
  const std::lock_guard lock(mutex_);
  if (!file_) return;
  if (const int error = write_all(file_.get(), lines); error != 0) fail(error);
}

void FilteredLog::fail(int error) {
  if (std::exchange(has_failed_, true)) return;
  notices_->post(path_.string() + ": " + errno_text(error) +
                 "; lines that match are in the logs of the ranks alone");
}

}  // namespace accel::supervisor
