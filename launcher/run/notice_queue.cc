#include "launcher/run/notice_queue.h"

#include <algorithm>
#include <cerrno>
#include <climits>
#include <utility>

#include <poll.h>
#include <unistd.h>

namespace accel::launcher {
namespace {

constexpr std::size_t kMostPending = 64 * 1024;

bool has_room(int fd) {
  pollfd waiting = {.fd = fd, .events = POLLOUT, .revents = 0};
  return ::poll(&waiting, 1, 0) == 1 && (waiting.revents & POLLOUT) != 0;
}

std::string mark_of(std::size_t num_dropped) {
  return "[" + std::to_string(num_dropped) + (num_dropped == 1 ? " notice is" : " notices are") +
         " missing here: nobody read them in time]\n";
}

}  // namespace

void NoticeQueue::push(std::string_view line) {
  drop_until_it_fits(line.size() + 1);
  lines_.emplace_back(line) += '\n';
  num_bytes_ += line.size() + 1;
  write_some();
}

// Of the first a part may be on the console already.
void NoticeQueue::drop_until_it_fits(std::size_t num_bytes) {
  while (lines_.size() > 1 && num_bytes_ + num_bytes > kMostPending) {
    num_bytes_ -= lines_[1].size();
    lines_.erase(lines_.begin() + 1);
    ++num_dropped_;
  }
}

void NoticeQueue::take_first() {
  num_bytes_ -= lines_.front().size();
  lines_.pop_front();
  num_written_ = 0;
  if (num_dropped_ == 0) return;
  lines_.push_front(mark_of(std::exchange(num_dropped_, 0)));
  num_bytes_ += lines_.front().size();
}

// A pipe that is writable takes PIPE_BUF bytes without waiting; a terminal that is writable takes more.
void NoticeQueue::write_some() {
  while (!lines_.empty() && has_room(fd_)) {
    const std::string_view rest = std::string_view(lines_.front()).substr(num_written_);
    const ssize_t written = ::write(fd_, rest.data(), std::min<std::size_t>(rest.size(), PIPE_BUF));
    if (written > 0) {
      num_written_ += static_cast<std::size_t>(written);
      if (num_written_ == lines_.front().size()) take_first();
    } else if (errno == EAGAIN) {
      return;
    } else if (errno != EINTR) {
      (void)take_unwritten();  // nobody can be told
    }
  }
}

std::string NoticeQueue::take_unwritten() {
  std::string text;
  while (!lines_.empty()) {
    text += std::string_view(lines_.front()).substr(num_written_);
    take_first();
  }
  return text;
}

}  // namespace accel::launcher
