#include "tests/support/fault_job.h"

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <random>

#include <fcntl.h>
#include <poll.h>
#include <spawn.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "runtime/supervisor/kernel/process_table.h"

namespace accel::test {
namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

EnvMap environment_with(const std::string& token) {
  EnvMap env = {{"PATH", "/usr/bin:/bin"}, {"FAULT_TOKEN", token}};
  // Where a sanitizer writes and what it ignores must reach the programs under test.
  for (const char* name : {"ASAN_OPTIONS", "TSAN_OPTIONS", "UBSAN_OPTIONS", "ACCEL_BUILD_DIR"}) {
    if (const char* value = std::getenv(name)) env[name] = value;
  }
  return env;
}

void pause_briefly() {
  ::poll(nullptr, 0, 2);
}

}  // namespace

std::string unique_token() {
  std::random_device random;
  return "fault-" + std::to_string(::getpid()) + "-" + std::to_string(random());
}

std::vector<std::string> processes_with(const std::string& token) {
  System& system = real_system();
  std::vector<std::string> found;
  for (const auto& entry : supervisor::read_process_table(system)) {
    if (entry.state == 'Z' || entry.pid == ::getpid()) continue;
    const std::string folder = "/proc/" + std::to_string(entry.pid);
    for (const char* file : {"/cmdline", "/environ"}) {
      const auto content = system.read_file(folder + file);
      if (!content || content->find(token) == std::string::npos) continue;
      found.push_back(std::to_string(entry.pid) + " " + supervisor::read_command(system, entry));
      break;
    }
  }
  return found;
}

bool eventually(const std::function<bool()>& condition) {
  const auto give_up = Clock::now() + kPatience;
  while (!condition()) {
    if (Clock::now() > give_up) return false;
    pause_briefly();
  }
  return true;
}

std::string build_path(const std::string& file) {
  const char* folder = std::getenv("ACCEL_BUILD_DIR");
  return std::string(folder == nullptr ? "build" : folder) + "/" + file;
}

std::vector<std::string> worker_command(const std::string& mode, const std::string& token) {
  std::vector<std::string> command = {build_path("tests/fault_worker")};
  std::string word;
  for (const char c : mode + " ") {
    if (c != ' ') {
      word += c;
    } else if (!word.empty()) {
      command.push_back(std::exchange(word, {}));
    }
  }
  command.push_back(token);
  return command;
}

supervisor::JobSpec make_job(const std::string& mode, const std::string& token, int num_workers) {
  supervisor::JobSpec spec;
  spec.job_id = token;
  spec.env = environment_with(token);
  spec.identity.world_size = spec.identity.local_world_size = num_workers;
  spec.stop.grace = 20s;
  spec.stop.linger = 100ms;
  spec.stop.kill_wait = 20s;
  spec.store.port = 0;
  for (int rank = 0; rank < num_workers; ++rank) {
    spec.workers.push_back(
        {.local_rank = rank, .global_rank = rank, .argv = worker_command(mode, token)});
  }
  return spec;
}

JobRun run_job(
    const supervisor::JobSpec& spec,
    const std::function<void(supervisor::WorkerHost&, const supervisor::HostEvent&)>& on_event) {
  JobRun run;
  auto host = supervisor::start_shim(spec, {.shim_path = build_path("bin/accel-shim")});
  if (!host) {
    run.error = host.error();
    return run;
  }
  const auto give_up = Clock::now() + 2 * kPatience;
  while (!run.outcome && !run.error && Clock::now() < give_up) {
    pollfd fd = {(*host)->event_fd(), POLLIN, 0};
    if (::poll(&fd, 1, 1000) <= 0) continue;
    auto event = (*host)->next_event();
    if (!event) {
      run.error = event.error();
    } else if (*event) {
      run.events.push_back(**event);
      if (const auto* outcome = std::get_if<supervisor::JobOutcome>(&**event)) {
        run.outcome = *outcome;
      }
      if (on_event) on_event(**host, **event);
    }
  }
  return run;
}

LaunchProcess::LaunchProcess(std::vector<std::string> arguments,
                             const std::string& token,
                             const EnvMap& environment) {
  arguments.insert(arguments.begin(), build_path("bin/accel-launch"));
  std::vector<char*> argv;
  for (std::string& argument : arguments) argv.push_back(argument.data());
  argv.push_back(nullptr);
  std::vector<std::string> variables;
  EnvMap whole = environment_with(token);
  whole.insert(environment.begin(), environment.end());
  for (const auto& [name, value] : whole) variables.push_back(name + "=" + value);
  std::vector<char*> envp;
  for (std::string& variable : variables) envp.push_back(variable.data());
  envp.push_back(nullptr);
  int pipe[2];
  if (::pipe2(pipe, O_CLOEXEC) != 0) return;
  output_fd_.reset(pipe[0]);
  const UniqueFd write_end(pipe[1]);
  posix_spawn_file_actions_t actions;
  ::posix_spawn_file_actions_init(&actions);
  ::posix_spawn_file_actions_addopen(&actions, 0, "/dev/null", O_RDONLY, 0);
  ::posix_spawn_file_actions_adddup2(&actions, write_end.get(), 1);
  ::posix_spawn_file_actions_adddup2(&actions, write_end.get(), 2);
  posix_spawnattr_t attributes;
  ::posix_spawnattr_init(&attributes);
  ::posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETPGROUP);
  // Killed together with its shim, it leaves orphans: they must be seen here, not at init.
  ::prctl(PR_SET_CHILD_SUBREAPER, 1);
  if (::posix_spawn(&pid_, argv[0], &actions, &attributes, argv.data(), envp.data()) != 0)
    pid_ = -1;
  ::posix_spawnattr_destroy(&attributes);
  ::posix_spawn_file_actions_destroy(&actions);
}

LaunchProcess::~LaunchProcess() {
  if (pid_ < 0 || status_) return;
  ::kill(pid_, SIGTERM);
  (void)wait();
}

bool LaunchProcess::read_some() {
  pollfd fd = {output_fd_.get(), POLLIN, 0};
  if (::poll(&fd, 1, static_cast<int>(kPatience / 1ms)) <= 0) return false;
  char buffer[4096];
  const ssize_t got = ::read(output_fd_.get(), buffer, sizeof buffer);
  if (got <= 0) return false;
  output_.append(buffer, static_cast<std::size_t>(got));
  return true;
}

std::vector<std::string> LaunchProcess::wait_for_lines(const std::string& start,
                                                       std::size_t count) {
  while (true) {
    std::vector<std::string> found;
    for (std::size_t begin = 0; begin < output_.size();) {
      const std::size_t end = output_.find('\n', begin);
      if (end == std::string::npos) break;
      if (output_.compare(begin, start.size(), start) == 0) {
        found.push_back(output_.substr(begin + start.size(), end - begin - start.size()));
      }
      begin = end + 1;
    }
    if (found.size() >= count || !read_some()) return found;
  }
}

void LaunchProcess::signal(int number) const {
  ::kill(pid_, number);
}

int LaunchProcess::wait() {
  if (status_) return *status_;
  while (output_fd_ && read_some()) {
  }
  int status = 0;
  if (!eventually([&] { return ::waitpid(pid_, &status, WNOHANG) == pid_; })) {
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, &status, 0);
    return *(status_ = -1);
  }
  status_ = WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
  return *status_;
}

pid_t LaunchProcess::shim() const {
  System& system = real_system();
  for (const auto& entry : supervisor::read_process_table(system)) {
    if (entry.parent != pid_) continue;
    const auto name = system.read_file("/proc/" + std::to_string(entry.pid) + "/comm");
    if (name && *name == "accel-shim\n") return entry.pid;
  }
  return 0;
}

}  // namespace accel::test
