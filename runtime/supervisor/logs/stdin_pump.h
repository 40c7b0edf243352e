// StdinPump: carries what is typed at the owner's terminal to rank 0.
//
// The shim is in another session than the terminal, so the kernel would let it read even while the
// user talks to his shell. Therefore nothing is read unless the owner is in the terminal's
// foreground group
// (/proc/<owner>/stat says so). Input that is no terminal is not pumped at all: rank 0 inherits it.
//
// Threads:  one of its own, which may wait for the terminal; the members from any thread.
#pragma once

#include <memory>
#include <mutex>
#include <string_view>

#include <sys/types.h>

#include <accel/result.h>

#include "runtime/supervisor/logs/writer_thread.h"
#include "runtime/unique_fd.h"

namespace accel::supervisor {

class StdinPump {
 public:
  enum class Target {
    kPipe,            // end of file is passed on by closing it
    kPseudoTerminal,  // end of file is passed on as the character that means it
  };

  // terminal  borrowed for ever: the thread may sit in read() when the pump is given up.
  // owner     0: read regardless of job control.
  // Errors  kSpawnFailed: no more threads or descriptors can be had.
  static Result<std::shared_ptr<StdinPump>> start(int terminal, pid_t owner);
  StdinPump(int terminal, pid_t owner);  // use start()

  // From now on input goes to `target`; takes the place of the one before.
  void feed(UniqueFd target, Target kind);

  void stop();

 private:
  void run();
  bool wait_for_input();
  void pass_on(std::string_view bytes);
  void pass_on_end();
  void write_to_target(std::string_view bytes);
  [[nodiscard]] bool owner_is_in_foreground() const;
  [[nodiscard]] bool is_line_mode() const;

  const int terminal_;
  const pid_t owner_;
  UniqueFd wake_;
  WriterThread thread_;

  std::mutex mutex_;
  UniqueFd target_;
  Target kind_ = Target::kPipe;
  bool is_stopped_ = false;
};

// Whether the process whose /proc/<pid>/stat this is belongs to its terminal's foreground group.
// Pure.
[[nodiscard]] bool is_foreground_stat(std::string_view stat);

}  // namespace accel::supervisor
