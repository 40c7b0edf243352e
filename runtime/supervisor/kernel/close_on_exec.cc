// A child of vfork shares its parent's memory, and another thread may have held the lock of malloc: so the folder is read
// by its system call (getdents64(2)) into the stack.

#include "runtime/supervisor/kernel/close_on_exec.h"

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include <fcntl.h>
#include <linux/close_range.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace accel::supervisor {
namespace {

// Of struct linux_dirent64: where its length and its name are.
constexpr std::size_t kLengthAt = 16;
constexpr std::size_t kNameAt = 19;

// -1 for "." and "..".
int descriptor_of(const char* name) noexcept {
  if (*name < '0' || *name > '9') return -1;
  int number = 0;
  for (; *name != '\0'; ++name) number = number * 10 + (*name - '0');
  return number;
}

}  // namespace

bool close_on_exec_one_by_one(int first) noexcept {
  const int folder = ::open("/proc/self/fd", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (folder < 0) return false;
  alignas(8) char entries[4096];
  long got = 0;
  while ((got = ::syscall(SYS_getdents64, folder, entries, sizeof entries)) > 0) {
    for (long at = 0; at < got;) {
      const char* entry = entries + at;
      std::uint16_t length = 0;
      std::memcpy(&length, entry + kLengthAt, sizeof length);
      if (const int fd = descriptor_of(entry + kNameAt); fd >= first)
        ::fcntl(fd, F_SETFD, FD_CLOEXEC);
      at += length;
    }
  }
  const int error = errno;
  ::close(folder);
  errno = error;
  return got == 0;
}

bool close_on_exec_from(int first) noexcept {
  if (::syscall(SYS_close_range, static_cast<unsigned>(first), ~0U, CLOSE_RANGE_CLOEXEC) == 0)
    return true;
  const bool is_too_old = errno == ENOSYS || errno == EINVAL;  // before 5.9; before 5.11
  return is_too_old && close_on_exec_one_by_one(first);
}

}  // namespace accel::supervisor
