#include "libaccel/tracking/append_file.h"

#include <cerrno>
#include <system_error>

#include <fcntl.h>
#include <unistd.h>

#include "runtime/write_all.h"

namespace accel::tracking {

int AppendFile::open() {
  std::error_code failure;
  if (path_.has_parent_path()) std::filesystem::create_directories(path_.parent_path(), failure);
  if (failure) return failure.value();
  file_ = UniqueFd(::open(path_.c_str(), O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0666));
  if (!file_) return errno;
  const off_t end = ::lseek(file_.get(), 0, SEEK_END);
  char last = '\n';
  if (form_ == FileForm::kLines && end > 0 && ::pread(file_.get(), &last, 1, end - 1) == 1 &&
      last != '\n')
    pending_.insert(0, "\n");
  return 0;
}

Backlog AppendFile::drain() {
  int error = file_ ? 0 : open();
  if (error == 0) {
    std::string_view rest = pending_;
    error = write_all(file_.get(), rest);
    pending_.erase(0, pending_.size() - rest.size());
  }
  if (error == 0) return {};
  return {.bytes = pending_.size(), .error = error, .path = path_.string()};
}

}  // namespace accel::tracking
