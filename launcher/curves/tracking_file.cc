#include "launcher/curves/tracking_file.h"

#include <cerrno>
#include <span>

#include <fcntl.h>
#include <sys/stat.h>

#include "runtime/printable.h"
#include "runtime/read_fully.h"
#include "runtime/unique_fd.h"

namespace accel::launcher {
namespace {

Error no_tracking_file(const std::string& message) {
  return Error(ErrorCode::kFileIo, message, "name a file that a tracker writes");
}

}  // namespace

Result<std::string> read_tracking_file(const std::string& path, std::size_t most_bytes) {
  const std::string name = "the tracking file " + printable(path);
  const UniqueFd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY));
  if (!file) return no_tracking_file("cannot open " + name + ": " + errno_text(errno));
  struct stat info = {};
  if (::fstat(file.get(), &info) != 0 || !S_ISREG(info.st_mode))
    return no_tracking_file(name + " is no plain file");
  const auto size = static_cast<std::size_t>(info.st_size);
  if (size > most_bytes)
    return no_tracking_file(name + " has more than " + std::to_string(most_bytes) + " bytes");
  std::string text(size, '\0');
  const FullRead read = read_fully(file.get(), std::as_writable_bytes(std::span(text)), 0);
  if (read.error != 0)
    return no_tracking_file("cannot read " + name + ": " + errno_text(read.error));
  text.resize(read.bytes);
  return text;
}

}  // namespace accel::launcher
