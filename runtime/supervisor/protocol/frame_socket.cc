// A frame above kMaxFrameBytes is written to a memfd, sealed against changes, and announced by
// {"type": "payload", "size": N} with the descriptor as SCM_RIGHTS. The receiver asks fstat for the
// size and the seals before it reads: an announcement is never believed.

#include "runtime/supervisor/protocol/frame_socket.h"

#include <array>
#include <cerrno>
#include <cstring>
#include <optional>
#include <string_view>

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "runtime/supervisor/protocol/json_fields.h"
#include "runtime/write_all.h"

namespace accel::supervisor {
namespace {

constexpr int kPayloadSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE;

// Writes `payload` into a sealed memfd.
UniqueFd make_payload(const std::string& payload) {
  UniqueFd fd(::memfd_create("accel-frame", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  std::string_view rest = payload;
  if (!fd || write_all(fd.get(), rest) != 0 || ::fcntl(fd.get(), F_ADD_SEALS, kPayloadSeals) != 0)
    return UniqueFd();
  return fd;
}

Error protocol_error(std::string what) {
  return Error(ErrorCode::kProtocol, std::move(what));
}

Result<std::string> read_payload(const UniqueFd& fd, std::size_t announced) {
  struct stat info {};
  if (!fd || ::fstat(fd.get(), &info) != 0) return protocol_error("a frame lacks its payload");
  const int seals = ::fcntl(fd.get(), F_GET_SEALS);
  const auto size = static_cast<std::size_t>(info.st_size);
  if (seals < 0 || (seals & kPayloadSeals) != kPayloadSeals || size != announced ||
      size > kMaxPayloadBytes) {
    return protocol_error("a payload is not as it was announced");
  }
  std::string payload(size, '\0');
  for (std::size_t done = 0; done < size;) {
    const ssize_t got =
        ::pread(fd.get(), payload.data() + done, size - done, static_cast<off_t>(done));
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return protocol_error("a payload cannot be read");
    done += static_cast<std::size_t>(got);
  }
  return payload;
}

FrameSocket::SendStatus send_frame_packet(int socket, std::string_view packet, int attached_fd) {
  iovec part = {const_cast<char*>(packet.data()), packet.size()};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int))> control{};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  if (attached_fd >= 0) {
    message.msg_control = control.data();
    message.msg_controllen = control.size();
    cmsghdr* header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof(int));
    std::memcpy(CMSG_DATA(header), &attached_fd, sizeof attached_fd);
  }
  while (true) {
    if (::sendmsg(socket, &message, MSG_NOSIGNAL | MSG_DONTWAIT) >= 0) {
      return FrameSocket::SendStatus::kSent;
    }
    if (errno == EINTR) continue;
    const bool is_full = errno == EAGAIN || errno == ENOBUFS;
    return is_full ? FrameSocket::SendStatus::kFull : FrameSocket::SendStatus::kPeerGone;
  }
}

// Takes the descriptors of `message` over; keeps the first, closes the others.
UniqueFd take_descriptors(msghdr& message) {
  UniqueFd first;
  for (cmsghdr* header = CMSG_FIRSTHDR(&message); header != nullptr;
       header = CMSG_NXTHDR(&message, header)) {
    if (header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS) continue;
    const std::size_t count = (header->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (std::size_t i = 0; i < count; ++i) {
      int fd = -1;
      std::memcpy(&fd, CMSG_DATA(header) + i * sizeof fd, sizeof fd);
      UniqueFd taken(fd);
      if (!first) first = std::move(taken);
    }
  }
  return first;
}

// The size that `frame` announces, when it announces a payload.
std::optional<std::size_t> announced_payload(const std::string& frame) {
  const Json json = Json::parse(frame, nullptr, false);
  if (!json.is_object() || json.value("type", Json()) != "payload") return std::nullopt;
  const auto size = json.find("size");
  if (size == json.end() || !size->is_number_unsigned()) return 0;
  return size->get<std::size_t>();
}

}  // namespace

Result<std::pair<FrameSocket, FrameSocket>> FrameSocket::make_pair() {
  int fds[2] = {-1, -1};
  if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, fds) != 0) {
    return Error(ErrorCode::kSpawnFailed, "cannot make a socket pair: " + errno_text(errno));
  }
  return std::pair(FrameSocket(UniqueFd(fds[0])), FrameSocket(UniqueFd(fds[1])));
}

FrameSocket::SendStatus FrameSocket::send(const std::string& frame) {
  if (frame.size() <= kMaxFrameBytes) return send_frame_packet(fd_.get(), frame, -1);
  const UniqueFd payload = make_payload(frame);
  if (!payload) return SendStatus::kFull;  // no memory now; the caller tries again
  const Json announcement = {{"type", "payload"}, {"size", frame.size()}};
  return send_frame_packet(fd_.get(), announcement.dump(), payload.get());
}

Result<FrameSocket::Received> FrameSocket::receive() {
  std::string packet(kMaxFrameBytes, '\0');
  iovec part = {packet.data(), packet.size()};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(4 * sizeof(int))> control{};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control.data();
  message.msg_controllen = control.size();
  ssize_t got = -1;
  bool was_reset = false;
  do {
    got = ::recvmsg(fd_.get(), &message, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
    // A peer that closes before it has read everything leaves ECONNRESET, once and ahead of the frames
    // that it had sent: its last word must not be lost to a request that came too late for it.
  } while (got < 0 && (errno == EINTR || (errno == ECONNRESET && !std::exchange(was_reset, true))));
  using Status = Received::Status;
  if (got < 0 && errno == EAGAIN) return Received{Status::kNothing, {}};
  if (got <= 0) return Received{Status::kPeerGone, {}};
  const UniqueFd attached = take_descriptors(message);
  if (message.msg_flags & (MSG_TRUNC | MSG_CTRUNC)) return protocol_error("a frame is too big");
  packet.resize(static_cast<std::size_t>(got));
  if (!attached) return Received{Status::kFrame, std::move(packet)};
  const auto announced = announced_payload(packet);
  if (!announced) return protocol_error("a frame carries a descriptor that it does not announce");
  auto payload = read_payload(attached, *announced);
  if (!payload) return std::move(payload).error();
  return Received{Status::kFrame, *std::move(payload)};
}

}  // namespace accel::supervisor
