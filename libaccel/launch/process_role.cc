#include "libaccel/launch/process_role.h"

#include <atomic>
#include <filesystem>

namespace accel::launch {
namespace {

std::atomic<bool> g_is_worker = false;
std::atomic<bool> g_has_state = false;

}  // namespace

void become_worker() {
  g_is_worker = true;
}
bool is_worker() {
  return g_is_worker;
}
void note_state(bool exists) {
  g_has_state = exists;
}
bool has_state() {
  return g_has_state;
}

int count_threads() {
  std::error_code failure;
  int count = 0;
  for (std::filesystem::directory_iterator thread("/proc/self/task", failure), end;
       !failure && thread != end;
       thread.increment(failure)) {
    ++count;
  }
  return count;
}

Result<void> check_may_launch(const LaunchSituation& situation,
                              const EnvLookup& environment,
                              std::string_view launcher) {
  const std::string who(launcher);
  const auto rank = environment("RANK");
  if (situation.is_worker || rank || environment("LOCAL_RANK")) {
    return Error(
        ErrorCode::kUsage,
        who + " was called in a worker" + (rank ? " (rank " + *rank + ")" : "") +
            ", which cannot start workers of its own",
        "call it from a program that was not launched itself; in a worker call the function "
        "directly");
  }
  if (situation.has_state) {
    return Error(ErrorCode::kUsage,
                 who +
                     " was called while an Accelerator or PartialState exists in this process: it "
                     "belongs to "
                     "one process, and workers need one each",
                 "construct the Accelerator only inside the function that is launched, or call "
                 "PartialState::reset() before");
  }
  if (situation.is_launching) {
    return Error(ErrorCode::kUsage,
                 who + " was called while another launch runs in this process",
                 "launch one after the other, or start more processes with one launch");
  }
  return {};
}

}  // namespace accel::launch
