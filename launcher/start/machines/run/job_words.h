// JobWords: what a launcher of several machines tells its user about the job.
//
// Threads:  the launcher's one.
#pragma once

#include <functional>
#include <set>
#include <string>
#include <utility>

#include "launcher/run/notice_queue.h"
#include "launcher/run/report.h"
#include "launcher/start/machines/board/records.h"
#include "runtime/supervisor/protocol/job_outcome.h"

namespace accel::launcher {

class JobWords {
 public:
  // is_quiet: errors alone. `before`: called before each line; may be none.
  JobWords(NoticeQueue& notices,
           ReportStyle report,
           bool is_quiet,
           std::function<void()> before = nullptr)
      : notices_(notices),
        report_(std::move(report)),
        is_quiet_(is_quiet),
        before_(std::move(before)) {}

  void say(const std::string& text);

  // Once for each verdict that ends the job; a restart is told by say().
  void tell(const Verdict& verdict, int machine_rank);

  // Behind the verdict: the report of this machine's workers, where they are the cause, or where all
  // went well.
  void report(const Verdict& verdict,
              int machine_rank,
              const supervisor::JobOutcome& outcome,
              int world_size);

 private:
  void push(const std::string& text);

  NoticeQueue& notices_;
  ReportStyle report_;
  bool is_quiet_;
  std::function<void()> before_;
  std::set<std::string, std::less<>> said_;
};

}  // namespace accel::launcher
