#include "launcher/notice_queue.h"

#include <algorithm>
#include <cerrno>
#include <climits>
#include <utility>

#include <poll.h>
#include <unistd.h>

namespace accel::launcher {
namespace {

// A user who reads nothing for days gets the newest notices, not all of them.
constexpr std::size_t kMostPending = 64 * 1024;

bool has_room(int fd) {
  pollfd waiting = {.fd = fd, .events = POLLOUT, .revents = 0};
  return ::poll(&waiting, 1, 0) == 1 && (waiting.revents & POLLOUT) != 0;
}

}  // namespace

void NoticeQueue::push(std::string_view line) {
  if (pending_.size() + line.size() > kMostPending) pending_.clear();
  pending_ += line;
  pending_ += '\n';
  write_some();
}

// A pipe that is writable takes PIPE_BUF bytes without waiting; a terminal that is writable takes more.
void NoticeQueue::write_some() {
  while (!pending_.empty() && has_room(fd_)) {
    const std::size_t size = std::min<std::size_t>(pending_.size(), PIPE_BUF);
    const ssize_t written = ::write(fd_, pending_.data(), size);
    if (written > 0) {
      pending_.erase(0, static_cast<std::size_t>(written));
    } else if (errno == EAGAIN) {
      return;
    } else if (errno != EINTR) {
      pending_.clear();  // nobody can be told
    }
  }
}

std::string NoticeQueue::take_unwritten() {
  return std::exchange(pending_, {});
}

}  // namespace accel::launcher
