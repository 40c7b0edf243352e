// ProgressDisplay: keeps a ProgressLine on the terminal, by the shim that writes the workers' output.
//
// It asks the shim each second where the workers are, and has it keep the line below their output. Before the launcher writes itself, or
// stops itself, hide() waits until the shim has erased the line, 2 s at most. Events of the shim that come meanwhile are held, so its
// owner takes all of them from next_event().
//
// Threads:  one.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <optional>
#include <string>

#include <accel/result.h>

#include "launcher/run/notice_queue.h"
#include "launcher/run/progress_line.h"
#include "runtime/clock.h"
#include "runtime/supervisor/owner/worker_host.h"

namespace accel::launcher {

class ProgressDisplay {
 public:
  struct Options {
    ProgressLine* line = nullptr;  // none: nothing is shown, and nothing asked
    const NoticeQueue* notices =
        nullptr;                    // nothing is shown while it has lines to write; may be none
    std::function<bool()> is_ours;  // asked each time; default: it is
    std::function<std::size_t()> columns;  // of the terminal on stderr; default asks it
    std::function<bool()> has_terminal;    // we are its foreground group; default asks it
    std::function<TimePoint()> now;        // default: the steady clock
  };

  ProgressDisplay(supervisor::WorkerHost& host, Options options);

  // Until look() has something to do, as poll(2) takes it; -1: nothing.
  [[nodiscard]] int milliseconds_to_look() const;
  // Asks the shim where the workers are, when it is time.
  void look();

  // Shows what a Snapshot says, and counts a Restarting; other events change nothing.
  void hear(const supervisor::HostEvent& event);
  // A generation follows of which the shim does not tell: its owner decided so.
  void restarting();

  void show();
  void hide();
  // The job is asked to stop: hidden for good.
  void end();

  // The next event of the shim, with those that were held. Once the shim is lost the line is erased.
  // Errors  those of WorkerHost::next_event().
  [[nodiscard]] Result<std::optional<supervisor::HostEvent>> next_event();
  // Whether next_event() has one that the shim's descriptor no longer tells of.
  [[nodiscard]] bool has_held() const { return !held_.empty() || lost_; }

 private:
  void erase();

  supervisor::WorkerHost& host_;
  Options options_;
  bool has_ended_ = false;
  std::string shown_;
  std::uint64_t num_shown_ = 0;  // ShowStatus::number of the last request
  TimePoint next_look_{};
  std::deque<supervisor::HostEvent> held_;
  std::optional<Error> lost_;
};

}  // namespace accel::launcher
