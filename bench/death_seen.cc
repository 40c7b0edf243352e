// death_seen: how long after SIGKILL of a worker the supervisor has seen its end, in nanoseconds, one line
// per round. Usage: death_seen SHIM ROUNDS

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <string>

#include <poll.h>

#include "runtime/clock.h"
#include "runtime/supervisor/owner/worker_host.h"

namespace {

using namespace accel;
using namespace accel::supervisor;

// The next event of `host`, waited for. Ends the program when there is none.
HostEvent wait_for_event(WorkerHost& host) {
  while (true) {
    pollfd fd = {host.event_fd(), POLLIN, 0};
    ::poll(&fd, 1, -1);
    auto event = host.next_event();
    if (!event) {
      std::fprintf(stderr, "%s\n", event.error().what());
      std::exit(1);
    }
    if (*event) return **std::move(event);
  }
}

bool runs_its_program(pid_t pid) {
  const auto name = real_system().read_file("/proc/" + std::to_string(pid) + "/comm");
  return name && *name == "sleep\n";
}

long long one_round(const std::string& shim, const char* path) {
  JobSpec spec;
  spec.job_id = "death-seen";
  spec.env = {{"PATH", path}};
  spec.store.enabled = false;
  spec.workers = {{.argv = {"sleep", "600"}}};
  auto host = start_shim(spec, {.shim_path = shim});
  if (!host) {
    std::fprintf(stderr, "%s\n", host.error().what());
    std::exit(1);
  }
  std::chrono::nanoseconds killed_at{};
  while (true) {
    const HostEvent event = wait_for_event(**host);
    if (const auto* started = std::get_if<GenerationStarted>(&event)) {
      const auto pid = static_cast<pid_t>(started->pids.at(0));
      while (!runs_its_program(pid)) ::poll(nullptr, 0, 1);
      killed_at = SteadyClock().now().time_since_epoch();
      ::kill(pid, SIGKILL);
    }
    if (const auto* outcome = std::get_if<JobOutcome>(&event)) {
      return (outcome->exits.at(0).seen_at - killed_at).count();
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) return 64;
  for (int i = 0; i < std::atoi(argv[2]); ++i) {
    std::printf("%lld\n", one_round(argv[1], std::getenv("PATH")));
  }
  return 0;
}
