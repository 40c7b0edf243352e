// Frames: what shim and owner say to each other, one JSON object per packet of a SOCK_SEQPACKET
// pair.
//
//   shim -> owner   hello, refused, generation_started, worker_exited, restarting, notice, outcome
//   owner -> shim   stop, suspend, resume, window_size, dump_stacks
//
// The first frame of the shim is hello with its protocol version; the owner goes on only with its
// own. A frame is at most kMaxFrameBytes; a bigger one travels as a sealed memfd beside a small
// frame. The end of the stream means that the other side is gone.
//
// Threads:  one thread per socket.
// Source:   docs/supervision.md; round trips and hostile bytes in
// tests/unit/supervisor/frames_test.cc.
#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include <accel/result.h>

#include "runtime/supervisor/job_outcome.h"
#include "runtime/unique_fd.h"

namespace accel::supervisor {

inline constexpr int kProtocolVersion = 1;
inline constexpr std::size_t kMaxFrameBytes = 64 * 1024;
inline constexpr std::size_t kMaxPayloadBytes = 512 * 1024 * 1024;  // of a memfd

// ---- shim -> owner ----

struct Hello {
  int protocol = kProtocolVersion;
  std::string build;  // version of the shim's build, for the message when the protocols differ
  std::int64_t pid = 0;
};

struct GenerationStarted {
  int generation = 0;
  std::vector<std::int64_t> pids;  // by local rank
  int store_port = 0;              // 0: no store
};

struct Restarting {
  int next_generation = 0;
  std::chrono::milliseconds delay{0};
  WorkerExit because;
};

struct Notice {
  std::string text;
};

// The job cannot be run (a port in use, a log folder that cannot be written). The last event.
struct Refused {
  Error error{ErrorCode::kInternal, ""};
};

using HostEvent =
    std::variant<Hello, Refused, GenerationStarted, WorkerExit, Restarting, Notice, JobOutcome>;

// ---- owner -> shim ----

enum class StopMode {
  kInterrupt,  // SIGINT, grace, SIGKILL
  kTerminate,  // preemption notice and the stop signal, grace, SIGKILL
  kKill,       // SIGKILL now
};

struct Stop {
  StopMode mode = StopMode::kTerminate;
  int signal = 0;  // what the owner was sent: the outcome names it, the exit code is 128 + signal
  bool is_delivered = false;  // the terminal gave the signal to the workers already
};
struct Suspend {};
struct Resume {};
struct WindowSize {
  int rows = 0;
  int columns = 0;
};
struct DumpStacks {};

using HostRequest = std::variant<Stop, Suspend, Resume, WindowSize, DumpStacks>;

[[nodiscard]] std::string encode(const HostEvent& event);
[[nodiscard]] std::string encode(const HostRequest& request);

// Errors  kProtocol for bytes that are no such frame.
[[nodiscard]] Result<HostEvent> decode_event(std::string_view frame);
[[nodiscard]] Result<HostRequest> decode_request(std::string_view frame);

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
