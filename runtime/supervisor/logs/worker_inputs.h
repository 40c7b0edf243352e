// WorkerInputs: what workers read: nothing, a pipe that is held open, the launcher's own input, or what a
// person types at its terminal.
//
// Threads:  one at a time; typing is passed on by a thread of its own (stdin_pump.h).
// Source:   stdio_plan.h says who gets which; tests/unit/supervisor/log_router_terminal_test.cc.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <sys/types.h>

#include <accel/result.h>

#include "runtime/supervisor/logs/stdin_pump.h"
#include "runtime/supervisor/logs/stdio_plan.h"
#include "runtime/unique_fd.h"

namespace accel::supervisor {

class WorkerInputs {
 public:
  // owner_in: the launcher's input. held: what stands in a pipe that is held open.
  WorkerInputs(int owner_in, pid_t owner_pid, std::string held)
      : owner_in_(owner_in), owner_pid_(owner_pid), held_text_(std::move(held)) {}

  // The worker's descriptor. For kPseudoTerminal: `master`, its other end, and `slave`, the worker's
  // output; unused otherwise.
  // Errors  kSpawnFailed.
  [[nodiscard]] Result<UniqueFd> open(InputKind kind, int master, int slave);

  // Workers whose pipes are held read their end.
  void end() { held_.clear(); }
  // What is typed from now on is not for workers.
  void stop_feeding();

 private:
  Result<void> fill(const UniqueFd& pipe) const;
  Result<void> feed_from_terminal(UniqueFd target, StdinPump::Target kind);

  int owner_in_;
  pid_t owner_pid_;
  std::string held_text_;
  std::shared_ptr<StdinPump> pump_;  // once a worker is fed
  std::vector<UniqueFd> held_;
};

}  // namespace accel::supervisor
