#include "libaccel/launch/standard_streams.h"

#include <algorithm>
#include <cerrno>

#include <fcntl.h>

#include "runtime/unique_fd.h"

namespace accel::launch {

Result<void> fill_standard_streams() {
  const auto is_missing = [](int number) { return ::fcntl(number, F_GETFD) < 0 && errno == EBADF; };
  constexpr int kStreams[] = {0, 1, 2};
  // The lowest free number is taken each time.
  while (std::ranges::any_of(kStreams, is_missing)) {
    UniqueFd null(::open("/dev/null", O_RDWR | O_CLOEXEC));
    if (!null) {
      return Error(ErrorCode::kFileIo,
                   "the program has not all of its standard streams, and /dev/null cannot be "
                   "opened in their place: " +
                       errno_text(errno),
                   "start the program with standard input, output and error");
    }
    if (null.get() > 2) continue;  // another thread was first
    ::fcntl(null.get(), F_SETFD, 0);
    (void)null.release();
  }
  return {};
}

}  // namespace accel::launch
