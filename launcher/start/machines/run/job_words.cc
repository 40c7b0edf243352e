#include "launcher/start/machines/run/job_words.h"

#include "launcher/flags/flag_spelling.h"
#include "launcher/start/machines/board/agreement.h"
#include "runtime/printable.h"

namespace accel::launcher {
namespace {

// Its report follows.
bool is_failure_of(int machine_rank, const Verdict& verdict) {
  const auto code = static_cast<ErrorCode>(verdict.code);
  return verdict.kind == VerdictKind::kFailed && verdict.machine == machine_rank &&
         (code == ErrorCode::kWorkerFailed || code == ErrorCode::kRestartsExhausted);
}

}  // namespace

void JobWords::push(const std::string& text) {
  if (before_) before_();
  notices_.push(text);
}

void JobWords::say(const std::string& text) {
  said_.insert(text);
  if (!is_quiet_) push(report_.program + ": " + printable(text));
}

void JobWords::tell(const Verdict& verdict, int machine_rank) {
  if (verdict.kind == VerdictKind::kStopped) return say("the job was stopped: " + verdict.text);
  if (verdict.kind != VerdictKind::kFailed) return;
  if (is_failure_of(machine_rank, verdict)) return say("the job failed: " + verdict.text);
  push(rendered(error_of(verdict), report_.program));
}

void JobWords::report(const Verdict& verdict,
                      int machine_rank,
                      const supervisor::JobOutcome& outcome,
                      int world_size) {
  const bool has_report =
      verdict.kind == VerdictKind::kSucceeded || is_failure_of(machine_rank, verdict);
  if (!has_report || is_quiet_) return;
  supervisor::JobOutcome unsaid = outcome;  // it repeats the notices of the job
  std::erase_if(unsaid.notices, [&](const std::string& notice) { return said_.contains(notice); });
  std::string text = render_report(unsaid, world_size, report_);
  if (text.ends_with('\n')) text.pop_back();
  if (!text.empty()) push(text);
}

}  // namespace accel::launcher
