// FrameSocket: one end of a SOCK_SEQPACKET connection that carries frames (frames.h).
//
// A frame above kMaxFrameBytes travels as a sealed memfd beside a small frame that announces it.
//
// Threads:  one thread per socket.
// Source:   tests/unit/supervisor/frames_test.cc.
#pragma once

#include <string>
#include <utility>

#include <accel/result.h>

#include "runtime/unique_fd.h"

namespace accel::supervisor {

inline constexpr std::size_t kMaxFrameBytes = 64 * 1024;
// Of a memfd. What an agent keeps in memory for a user's shim; the events of a thousand workers have room without what they
// wrote, which is cut where it has none (short_frame.h).
inline constexpr std::size_t kMaxPayloadBytes = 16 * 1024 * 1024;

// One end of the pair. The descriptor is non-blocking.
class FrameSocket {
 public:
  explicit FrameSocket(UniqueFd fd) : fd_(std::move(fd)) {}

  // Both ends, close-on-exec. Errors kSpawnFailed.
  [[nodiscard]] static Result<std::pair<FrameSocket, FrameSocket>> make_pair();

  [[nodiscard]] int fd() const noexcept { return fd_.get(); }
  [[nodiscard]] bool is_open() const noexcept { return static_cast<bool>(fd_); }
  void close() noexcept { fd_.reset(); }

  enum class SendStatus { kSent, kFull, kPeerGone };
  [[nodiscard]] SendStatus send(const std::string& frame);

  struct Received {
    enum class Status { kFrame, kNothing, kPeerGone } status = Status::kNothing;
    std::string frame;
  };
  // Errors  kProtocol for a frame that is too big, cut short, or carries a memfd that is not as
  // announced.
  [[nodiscard]] Result<Received> receive();

 private:
  UniqueFd fd_;
};

}  // namespace accel::supervisor
