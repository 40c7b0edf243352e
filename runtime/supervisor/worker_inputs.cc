#include "runtime/supervisor/worker_inputs.h"

#include <cerrno>
#include <utility>

#include <fcntl.h>

#include "runtime/supervisor/worker_pipe.h"

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
