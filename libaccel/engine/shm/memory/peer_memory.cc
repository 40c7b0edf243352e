#include "libaccel/engine/shm/memory/peer_memory.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <string>

#include <sys/uio.h>
#include <unistd.h>

#include "runtime/printable.h"

namespace accel::shm {
namespace {

// Measured: what a call moves is still in the second cache at its end.
constexpr std::size_t kMostAtOnce = std::size_t{1} << 20;

using SystemCall =
    ssize_t (*)(pid_t, const iovec*, unsigned long, const iovec*, unsigned long, unsigned long);

void* as_pointer(std::uint64_t address) {
  return reinterpret_cast<void*>(static_cast<std::uintptr_t>(address));
}

Error refusal(pid_t process, const char* what, int cause) {
  ErrorCode code = ErrorCode::kInternal;
  if (cause == ESRCH) code = ErrorCode::kPeerLost;
  if (cause == EPERM || cause == ENOSYS || cause == EACCES) code = ErrorCode::kUnsupported;
  return Error(code,
               "the memory of process " + std::to_string(process) + " cannot be " + what + ": " +
                   errno_text(cause));
}

Result<void> copy(SystemCall call,
                  const char* what,
                  pid_t process,
                  std::uint64_t theirs,
                  std::byte* own,
                  std::size_t bytes) {
  for (std::size_t done = 0; done < bytes;) {
    const std::size_t size = std::min(kMostAtOnce, bytes - done);
    const iovec here = {own + done, size};
    const iovec there = {as_pointer(theirs + done), size};
    const ssize_t copied = call(process, &here, 1, &there, 1, 0);
    if (copied < 0 && errno == EINTR) continue;
    if (copied <= 0) return refusal(process, what, copied < 0 ? errno : EFAULT);
    done += static_cast<std::size_t>(copied);
  }
  return {};
}

}  // namespace

Result<void> read_memory(pid_t process, std::uint64_t from, std::byte* to, std::size_t bytes) {
  return copy(::process_vm_readv, "read", process, from, to, bytes);
}

Result<void> write_memory(pid_t process,
                          std::uint64_t to,
                          const std::byte* from,
                          std::size_t bytes) {
  return copy(::process_vm_writev, "written", process, to, const_cast<std::byte*>(from), bytes);
}

std::uint64_t reachable_address(const std::byte* data, std::size_t bytes) {
  if (bytes == 0) return 0;
  auto* const begin = const_cast<std::byte*>(data);
  std::array<std::byte, 2> seen;
  const iovec here = {seen.data(), seen.size()};
  const std::array<iovec, 2> ends = {iovec{begin, 1}, iovec{begin + bytes - 1, 1}};
  const ssize_t copied = ::process_vm_readv(::getpid(), &here, 1, ends.data(), ends.size(), 0);
  return copied == static_cast<ssize_t>(seen.size()) ? reinterpret_cast<std::uintptr_t>(data) : 0;
}

}  // namespace accel::shm
