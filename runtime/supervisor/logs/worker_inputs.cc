#include "runtime/supervisor/logs/worker_inputs.h"

#include <algorithm>
#include <cerrno>
#include <utility>

#include <fcntl.h>
#include <unistd.h>

#include "runtime/supervisor/logs/worker_pipe.h"

namespace accel::supervisor {

Result<UniqueFd> WorkerInputs::open(InputKind kind, int master, int slave) {
  switch (kind) {
    case InputKind::kNull: {
      UniqueFd null(::open("/dev/null", O_RDONLY | O_CLOEXEC));
      if (null) return null;
      return Error(ErrorCode::kSpawnFailed, "cannot open /dev/null: " + errno_text(errno));
    }
    case InputKind::kHeldPipe: {
      auto pipe = make_worker_pipe();
      if (!pipe) return std::move(pipe).error();
      if (auto filled = fill(pipe->write_end); !filled) return std::move(filled).error();
      held_.push_back(std::move(pipe->write_end));
      return std::move(pipe->read_end);
    }
    case InputKind::kInherited:
      return duplicate(owner_in_);
    case InputKind::kPumpedPipe: {
      auto pipe = make_worker_pipe();
      if (!pipe) return std::move(pipe).error();
      set_non_blocking(pipe->write_end.get());
      auto fed = feed_from_terminal(std::move(pipe->write_end), StdinPump::Target::kPipe);
      if (!fed) return std::move(fed).error();
      return std::move(pipe->read_end);
    }
    case InputKind::kPseudoTerminal: {
      auto copy = duplicate(master);
      if (!copy) return std::move(copy).error();
      auto fed = feed_from_terminal(*std::move(copy), StdinPump::Target::kPseudoTerminal);
      if (!fed) return std::move(fed).error();
      return duplicate(slave);
    }
  }
  return Error(ErrorCode::kInternal, "an unknown kind of input");
}

// The pipe is new, and nobody reads yet: what does not go in at once never would.
Result<void> WorkerInputs::fill(const UniqueFd& pipe) const {
  if (held_text_.empty()) return {};
  set_non_blocking(pipe.get());
  const ssize_t written = ::write(pipe.get(), held_text_.data(), held_text_.size());
  if (written == static_cast<ssize_t>(held_text_.size())) return {};
  return Error(ErrorCode::kSpawnFailed,
               "a pipe takes " + std::to_string(std::max<ssize_t>(written, 0)) + " of " +
                   std::to_string(held_text_.size()) + " bytes that a worker is to read",
               "raise /proc/sys/fs/pipe-user-pages-soft, or close pipes");
}

Result<void> WorkerInputs::feed_from_terminal(UniqueFd target, StdinPump::Target kind) {
  if (!pump_) {
    auto started = StdinPump::start(owner_in_, owner_pid_);
    if (!started) return std::move(started).error();
    pump_ = *std::move(started);
  }
  pump_->feed(std::move(target), kind);
  return {};
}

void WorkerInputs::stop_feeding() {
  if (pump_) pump_->stop();
}

}  // namespace accel::supervisor
