#include "runtime/supervisor/protocol/fd_packet.h"

#include <array>
#include <cerrno>
#include <cstring>
#include <string_view>

#include <sys/mman.h>
#include <sys/socket.h>

#include "runtime/write_all.h"

namespace accel::supervisor {

bool send_packet(int socket, const void* bytes, std::size_t size, const std::vector<int>& fds) {
  iovec part = {const_cast<void*>(bytes), size};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int) * kMostPacketFds)> control{};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  if (!fds.empty()) {
    message.msg_control = control.data();
    message.msg_controllen = CMSG_SPACE(sizeof(int) * fds.size());
    cmsghdr* header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof(int) * fds.size());
    std::memcpy(CMSG_DATA(header), fds.data(), sizeof(int) * fds.size());
  }
  ssize_t sent = -1;
  do {
    sent = ::sendmsg(socket, &message, MSG_NOSIGNAL);
  } while (sent < 0 && errno == EINTR);
  return sent == static_cast<ssize_t>(size);
}

bool receive_packet(int socket, void* bytes, std::size_t size, std::vector<UniqueFd>& fds) {
  iovec part = {bytes, size};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int) * kMostPacketFds)> control{};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control.data();
  message.msg_controllen = control.size();
  ssize_t got = -1;
  do {
    got = ::recvmsg(socket, &message, MSG_CMSG_CLOEXEC);
  } while (got < 0 && errno == EINTR);
  for (cmsghdr* header = CMSG_FIRSTHDR(&message); got >= 0 && header != nullptr;
       header = CMSG_NXTHDR(&message, header)) {
    if (header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS) continue;
    const std::size_t count = (header->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    std::vector<int> numbers(count);
    std::memcpy(numbers.data(), CMSG_DATA(header), count * sizeof(int));
    for (const int number : numbers) fds.emplace_back(number);
  }
  return got == static_cast<ssize_t>(size);
}

UniqueFd memfd_with(const std::string& text) {
  UniqueFd fd(::memfd_create("accel", MFD_CLOEXEC));
  std::string_view rest = text;
  if (!fd || write_all(fd.get(), rest) != 0) return UniqueFd();
  return fd;
}

std::string read_memfd(int fd) {
  std::string text;
  char buffer[16 * 1024];
  while (true) {
    const ssize_t got = ::pread(fd, buffer, sizeof buffer, static_cast<off_t>(text.size()));
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return text;
    text.append(buffer, static_cast<std::size_t>(got));
  }
}

}  // namespace accel::supervisor
