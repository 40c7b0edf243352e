#include "agent/shims/worker_end.h"

#include <array>

#include "runtime/printable.h"
#include "runtime/supervisor/spawn/exit_report.h"

namespace accel::agent {
namespace {

using supervisor::ExitCause;

struct CausePair {
  ExitCause ours;
  v1::ExitInfo::Cause theirs;
};
constexpr std::array kCausePairs = {
    CausePair{ExitCause::kOk, v1::ExitInfo::CAUSE_OK},
    CausePair{ExitCause::kNonZero, v1::ExitInfo::CAUSE_NONZERO},
    CausePair{ExitCause::kSignaled, v1::ExitInfo::CAUSE_SIGNALED},
    CausePair{ExitCause::kOutOfMemory, v1::ExitInfo::CAUSE_OOM},
    CausePair{ExitCause::kExecFailed, v1::ExitInfo::CAUSE_EXEC_FAILED},
    CausePair{ExitCause::kUnkillable, v1::ExitInfo::CAUSE_UNKILLABLE},
    CausePair{ExitCause::kStoppedByUs, v1::ExitInfo::CAUSE_STOPPED_BY_US},
    CausePair{ExitCause::kLost, v1::ExitInfo::CAUSE_LOST},
    CausePair{ExitCause::kLibraryMissing, v1::ExitInfo::CAUSE_LIBRARY_MISSING},
    CausePair{ExitCause::kHang, v1::ExitInfo::CAUSE_HANG},
};
static_assert(kCausePairs.size() == supervisor::kNumExitCauses);

constexpr std::size_t kTailBytes = 4096;

// "./train: execve: Exec format error", "chdir to /data: No such file or directory".
std::string describe_exec_failure(const supervisor::WorkerExit& exit) {
  if (exit.stage.empty()) return printable(exit.detail);  // of another node
  const bool is_of_folder = exit.stage == "chdir" && !exit.detail.empty();
  const std::string step =
      is_of_folder ? "chdir to " + exit.detail : exit.program + ": " + exit.stage;
  return printable(step) + ": " + errno_text(exit.error_number);
}

}  // namespace

v1::ExitInfo describe_end(const supervisor::WorkerExit& exit) {
  v1::ExitInfo info;
  info.set_cause(v1::ExitInfo::CAUSE_UNKNOWN);
  for (const CausePair& pair : kCausePairs) {
    if (pair.ours == exit.cause) info.set_cause(pair.theirs);
  }
  info.set_code(exit.exit_code);
  info.set_signal(exit.signal);
  info.set_core(exit.core_dumped);
  info.set_core_path(printable(exit.core_path));
  info.set_peak_rss(exit.peak_rss_bytes);
  info.set_tail_err(exit.tail.size() > kTailBytes ? exit.tail.substr(exit.tail.size() - kTailBytes)
                                                  : exit.tail);
  if (exit.cause == ExitCause::kHang || exit.cause == ExitCause::kOutOfMemory)
    info.set_detail(printable(exit.detail));
  if (exit.cause == ExitCause::kExecFailed) info.set_detail(describe_exec_failure(exit));
  return info;
}

std::vector<ExitCause> causes_named(const std::string& name) {
  if (name == "NONZERO") return {ExitCause::kNonZero};
  if (name == "SIGNALED") return {ExitCause::kSignaled};
  if (name == "OOM") return {ExitCause::kOutOfMemory};
  if (name == "HANG") return {ExitCause::kHang};
  if (name == "LOST") return {ExitCause::kLost};
  if (name == "EXEC_FAILED") return {ExitCause::kExecFailed, ExitCause::kLibraryMissing};
  return {};
}

supervisor::WorkerExit to_worker_exit(const v1::ExitInfo& info) {
  supervisor::WorkerExit exit;
  exit.cause = ExitCause::kLost;
  for (const CausePair& pair : kCausePairs) {
    if (pair.theirs == info.cause()) exit.cause = pair.ours;
  }
  exit.exit_code = info.code();
  exit.signal = info.signal();
  exit.core_dumped = info.core();
  exit.core_path = info.core_path();
  exit.peak_rss_bytes = info.peak_rss();
  exit.tail = info.tail_err();
  exit.detail = info.detail();
  return exit;
}

std::string describe_outcome(const supervisor::JobOutcome& outcome) {
  std::string text;
  if (outcome.first_failure) {
    const supervisor::WorkerExit& exit = *outcome.first_failure;
    text += "rank " + std::to_string(exit.global_rank);
    if (exit.cause == ExitCause::kExecFailed) {
      text += " could not be started: " + describe_end(exit).detail();
    } else if (exit.cause == ExitCause::kHang) {
      text += " made no progress: " + printable(exit.detail);
    } else if (exit.cause == ExitCause::kOutOfMemory) {
      text += " was killed because memory ran out (it used at most " +
              std::to_string(exit.peak_rss_bytes >> 20) + " MiB" +
              (exit.detail.empty() ? "" : ", " + printable(exit.detail)) + ")";
    } else if (exit.signal != 0) {
      text += " was ended by " + supervisor::signal_name(exit.signal);
    } else {
      text += " failed with exit code " + std::to_string(exit.exit_code);
    }
    text += "\n";
    if (!exit.tail.empty()) text += printable(describe_end(exit).tail_err());
    if (!text.ends_with('\n')) text += "\n";
  }
  for (const auto& leftover : outcome.leftovers) {
    text += "ended a process it left behind: " + std::to_string(leftover.pid) + " " +
            printable(leftover.command) + "\n";
  }
  for (const auto& notice : outcome.notices) text += printable(notice) + "\n";
  return text;
}

}  // namespace accel::agent
