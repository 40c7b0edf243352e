// FdPacket: a packet on a SOCK_SEQPACKET socket with descriptors beside its bytes.
//
// For blocking sockets between processes of one program and build: what is received is trusted.
//
// Threads:  functions without state; one thread per socket.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "runtime/unique_fd.h"

namespace accel::supervisor {

inline constexpr std::size_t kMostPacketFds = 16;

// False with errno when it did not go. The descriptors stay ours.
[[nodiscard]] bool send_packet(int socket,
                               const void* bytes,
                               std::size_t size,
                               const std::vector<int>& fds);

// Waits. False at the end of the stream, and for a packet that is not of `size` bytes. What was received is
// close-on-exec.
[[nodiscard]] bool receive_packet(int socket,
                                  void* bytes,
                                  std::size_t size,
                                  std::vector<UniqueFd>& fds);

// A memfd that holds `text`, for what is too long for a packet; none when the system refuses.
[[nodiscard]] UniqueFd memfd_with(const std::string& text);

// The whole content.
[[nodiscard]] std::string read_memfd(int fd);

}  // namespace accel::supervisor
