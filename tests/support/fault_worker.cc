// fault_worker: a worker that misbehaves on request. Usage: fault_worker MODE [ARGUMENT] TOKEN
//
//   exit CODE        ends at once
//   kill SIGNAL      ends itself by that signal
//   pause            announces itself and waits for ever
//   stubborn         the same, ignoring every signal that can be ignored
//   family           stubborn, with a stubborn child, one in a session of its own, one forked
//   twice, and one
//                    forked twice into a session of its own that has dropped its environment
//   leave            starts that family and ends with 0
//   fail-first MODE  fails in generation 0, then follows MODE, or ends with 0
//   rank0 MODE..     rank 0 follows MODE, the others pause
//   changes MODE..   takes one core, 64 descriptors and, as root, the user nobody; then follows MODE
//   descriptors      prints its open descriptors
//   zombies          leaves dead grandchildren to the subreaper, then pauses
//   fill BYTES       writes so many to stdout, ends with 0
//   stops SIGNAL     waits for the signal, says "got", ends with 0
//   beats COUNT      reports COUNT steps, 20 ms apart (rank 1: one less), then says "silent" and waits
//                    for ever; "beats 0" reports for ever
//   notices TEXT     has TEXT for an operator, ends with 0
//   environment      prints its environment to stderr, ends with 0
//   saves HOW        handles preemption: when asked it marks itself saved (unless HOW is "not"),
//                    says "saved", ends with 85
//
// Announcements are lines "ready PID" on stdout.

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include <dirent.h>
#include <sched.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <accel/channel.h>

namespace {

void say(const std::string& line) {
  const std::string text = line + "\n";
  (void)!::write(1, text.data(), text.size());
}

void announce() {
  say("ready " + std::to_string(::getpid()));
}

[[noreturn]] void wait_for_ever() {
  while (true) ::pause();
}

void ignore_signals() {
  for (int number = 1; number < NSIG; ++number) ::signal(number, SIG_IGN);
  ::signal(SIGCHLD, SIG_DFL);
}

[[noreturn]] void be_stubborn() {
  ignore_signals();
  announce();
  wait_for_ever();
}

// The child of a child that has ended: init's, or the subreaper's.
template <typename Body>
void fork_twice(Body body) {
  const pid_t child = ::fork();
  if (child == 0) {
    if (::fork() == 0) body();
    ::_exit(0);
  }
  ::waitpid(child, nullptr, 0);
}

void start_family(char** argv, const std::string& token) {
  if (::fork() == 0) be_stubborn();
  if (::fork() == 0) {
    ::setsid();
    be_stubborn();
  }
  fork_twice([] { be_stubborn(); });
  fork_twice([&] {
    ::setsid();
    const char* const arguments[] = {argv[0], "stubborn", token.c_str(), nullptr};
    const char* const nothing[] = {nullptr};
    ::execve(argv[0], const_cast<char* const*>(arguments), const_cast<char* const*>(nothing));
    ::_exit(1);
  });
}

bool change_itself() {
  constexpr uid_t kNobody = 65534;
  cpu_set_t cpus;
  if (::sched_getaffinity(0, sizeof cpus, &cpus) != 0) return false;
  for (int cpu = 0; cpu < CPU_SETSIZE && CPU_COUNT(&cpus) > 1; ++cpu) CPU_CLR(cpu, &cpus);
  const rlimit files = {.rlim_cur = 64, .rlim_max = 64};
  return ::sched_setaffinity(0, sizeof cpus, &cpus) == 0 &&
         ::setrlimit(RLIMIT_NOFILE, &files) == 0 &&
         (::geteuid() != 0 || ::setresuid(kNobody, kNobody, kNobody) == 0);
}

void print_descriptors() {
  std::vector<int> numbers;
  DIR* folder = ::opendir("/proc/self/fd");
  const int own = ::dirfd(folder);
  while (const dirent* entry = ::readdir(folder)) {
    const int number = std::atoi(entry->d_name);
    if (entry->d_name[0] != '.' && number != own) numbers.push_back(number);
  }
  ::closedir(folder);
  std::sort(numbers.begin(), numbers.end());
  std::string line = "descriptors";
  for (const int number : numbers) line += " " + std::to_string(number);
  const char* channel = std::getenv("ACCEL_CHANNEL");
  say(line + " channel " + (channel == nullptr ? "none" : channel));
}

void leave_zombies() {
  for (int i = 0; i < 20; ++i) {
    fork_twice([] { ::_exit(0); });
  }
}

int run(int argc, char** argv, int at) {
  const std::string mode = argv[at];
  const std::string argument = argv[at + 1];
  const std::string token = argv[argc - 1];
  const char* rank = std::getenv("RANK");
  const char* generation = std::getenv("TORCHELASTIC_RESTART_COUNT");
  if (mode == "exit") return std::stoi(argument);
  if (mode == "kill") {
    ::kill(::getpid(), std::stoi(argument));
    wait_for_ever();
  }
  if (mode == "pause") {
    announce();
    wait_for_ever();
  }
  if (mode == "stubborn") be_stubborn();
  if (mode == "family" || mode == "leave") {
    start_family(argv, token);
    if (mode == "leave") return 0;
    be_stubborn();
  }
  if (mode == "fail-first") {
    if (generation != nullptr && std::strcmp(generation, "0") == 0) return 3;
    return at + 1 < argc - 1 ? run(argc, argv, at + 1) : 0;
  }
  if (mode == "rank0") {
    if (rank != nullptr && std::strcmp(rank, "0") == 0) return run(argc, argv, at + 1);
    announce();
    wait_for_ever();
  }
  if (mode == "changes") {
    if (!change_itself()) return 66;
    return run(argc, argv, at + 1);
  }
  if (mode == "descriptors") {
    print_descriptors();
    return 0;
  }
  if (mode == "zombies") {
    leave_zombies();
    announce();
    wait_for_ever();
  }
  if (mode == "fill") {
    say(std::string(std::stoul(argument), 'x'));
    return 0;
  }
  if (mode == "stops") {
    sigset_t set;
    ::sigemptyset(&set);
    ::sigaddset(&set, std::stoi(argument));
    ::sigprocmask(SIG_BLOCK, &set, nullptr);
    announce();
    int number = 0;
    ::sigwait(&set, &number);
    say("got " + std::to_string(number));
    return 0;
  }
  if (mode == "beats") {
    auto channel = accel::WorkerChannel::open(accel::process_env());
    if (!channel || !*channel) return 65;
    announce();
    const bool is_rank1 = rank != nullptr && std::strcmp(rank, "1") == 0;
    const std::uint64_t wanted = std::stoull(argument);
    const std::uint64_t steps = wanted > 0 && is_rank1 ? wanted - 1 : wanted;
    for (std::uint64_t step = 1; wanted == 0 || step <= steps; ++step) {
      (*channel)->heartbeat({.step = step, .phase = accel::WorkerPhase::kTraining});
      ::usleep(20'000);
    }
    say("silent");
    wait_for_ever();
  }
  if (mode == "notices") {
    auto channel = accel::WorkerChannel::open(accel::process_env());
    if (!channel || !*channel) return 65;
    (*channel)->notice(argument);
    return 0;
  }
  if (mode == "environment") {
    std::string lines = "\n";
    for (char** variable = ::environ; *variable != nullptr; ++variable) {
      lines += std::string(*variable) + "\n";
    }
    (void)!::write(2, lines.data(), lines.size());
    return 0;
  }
  if (mode == "saves") {
    auto channel = accel::WorkerChannel::open(accel::process_env());
    if (!channel || !*channel) return 65;
    (*channel)->declare(accel::WorkerAbility::kHandlesPreemption);
    announce();
    accel::WorkerRequests asked;
    while (!asked.has(accel::WorkerRequest::kPreempt)) {
      asked = (*channel)->wait_for_requests(asked, std::chrono::seconds(60));
    }
    if (argument != "not") (*channel)->mark_saved(7);
    say("saved");
    return 85;
  }
  return 64;
}

}  // namespace

int main(int argc, char** argv) {
  return argc < 3 ? 64 : run(argc, argv, 1);
}
