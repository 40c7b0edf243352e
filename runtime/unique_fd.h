// UniqueFd: a file descriptor with one owner, closed when the owner goes.
//
// Threads:  a value type; move it, do not share it.
#pragma once

#include <cerrno>
#include <utility>

#include <unistd.h>

namespace accel {

class UniqueFd {
 public:
  UniqueFd() = default;
  explicit UniqueFd(int fd) noexcept : fd_(fd) {}
  UniqueFd(UniqueFd&& other) noexcept : fd_(other.release()) {}
  UniqueFd& operator=(UniqueFd&& other) noexcept {
    reset(other.release());
    return *this;
  }
  ~UniqueFd() { reset(); }

  [[nodiscard]] int get() const noexcept { return fd_; }
  [[nodiscard]] explicit operator bool() const noexcept { return fd_ >= 0; }

  // Gives the descriptor away; -1 stays behind.
  [[nodiscard]] int release() noexcept { return std::exchange(fd_, -1); }

  // Closes what is held and takes `fd`. errno survives.
  void reset(int fd = -1) noexcept;

 private:
  int fd_ = -1;
};

inline void UniqueFd::reset(int fd) noexcept {
  const int old = std::exchange(fd_, fd);
  if (old < 0 || old == fd) return;
  const int saved_errno = errno;
  ::close(old);  // never retried: Linux frees the number even when it answers EINTR
  errno = saved_errno;
}

}  // namespace accel
