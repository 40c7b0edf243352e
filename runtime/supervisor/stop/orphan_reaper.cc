#include "runtime/supervisor/stop/orphan_reaper.h"

#include <mutex>
#include <set>
#include <thread>
#include <variant>

#include <sys/wait.h>
#include <unistd.h>

#include "runtime/clock.h"
#include "runtime/supervisor/kernel/process_table.h"

namespace accel::supervisor {
namespace {

std::mutex watched_mutex;
std::set<pid_t> watched;

// Whether one is about to end.
bool reap_ended(System& system) {
  // Nobody may start a child between the look at /proc and the wait for what it showed.
  const std::scoped_lock lock(watched_mutex);
  const pid_t session = ::getsid(0);
  bool is_one_exiting = false;
  for (const ProcessEntry& entry : read_process_table(system)) {
    const bool is_orphan =
        entry.parent == ::getpid() && entry.session != session && !watched.contains(entry.pid);
    if (!is_orphan) continue;
    if (entry.state == 'Z') {
      ::waitpid(entry.pid, nullptr, WNOHANG);
    } else if (entry.is_exiting) {
      is_one_exiting = true;
    }
  }
  return is_one_exiting;
}

}  // namespace

SpawnResult spawn_watched(const SpawnRequest& request) {
  const std::scoped_lock lock(watched_mutex);
  SpawnResult result = spawn(request);
  if (const auto* child = std::get_if<SpawnedProcess>(&result)) watched.insert(child->pid());
  return result;
}

void forget_watched(pid_t child) {
  const std::scoped_lock lock(watched_mutex);
  watched.erase(child);
}

void reap_orphans(System& system, std::chrono::milliseconds limit) {
  const SteadyClock clock;
  const TimePoint end = clock.now() + limit;
  while (reap_ended(system) && clock.now() < end)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
}

}  // namespace accel::supervisor
