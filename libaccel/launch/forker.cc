// An order is the JSON of what ForkOrder says in words, in a memfd, and seven descriptors: that memfd, the socket and the
// job of the shim, the program's standard streams as they are now, and its folder. The answer is {pid, what failed} with a pidfd.
//
// Between the fork of the shim and its execution it forks the fork server: so that one is its child and can give it
// workers, and is itself a copy of the forker, with the program's functions at the program's addresses.

#include "libaccel/launch/forker.h"

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <iostream>

#include <dlfcn.h>
#include <fcntl.h>
#include <nlohmann/json.hpp>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "libaccel/launch/worker_entry.h"
#include "runtime/clock.h"
#include "runtime/supervisor/kernel/close_on_exec.h"
#include "runtime/supervisor/kernel/quiet_process.h"
#include "runtime/supervisor/protocol/fd_packet.h"
#include "runtime/supervisor/protocol/json_fields.h"
#include "runtime/supervisor/spawn/fork_server.h"
#include "runtime/supervisor/stop/orphan_sweep.h"

namespace accel::launch {
namespace {

using supervisor::Json;
using supervisor::receive_packet;
using supervisor::send_packet;

constexpr std::size_t kOrderFds = 7;
constexpr std::chrono::milliseconds kSweepLimit{2'000};
constexpr int kNoMask = -1;
constexpr int kUnknownFunction = -1;  // in place of an errno

struct Answer {
  pid_t pid = 0;
  int error_number = 0;
};

// "/usr/bin/train" or "/usr/lib/libmodel.so": where the function's code comes from.
std::string module_of(PlainFunction function) {
  Dl_info info{};
  if (::dladdr(reinterpret_cast<void*>(function), &info) == 0 || info.dli_fname == nullptr)
    return "";
  return info.dli_fname;
}

std::string encode(const ForkOrder& order) {
  return Json{{"shim", supervisor::to_field(order.shim_path)},
              {"env", supervisor::to_field(order.shim_env)},
              {"name", supervisor::to_field(order.function_name)},
              {"address", reinterpret_cast<std::uintptr_t>(order.function)},
              {"module", supervisor::to_field(module_of(order.function))},
              {"mask", order.mask ? static_cast<int>(*order.mask) : kNoMask}}
      .dump();
}

struct ReceivedOrder {
  ForkOrder order;
  std::string module;
  std::vector<UniqueFd> fds;
};

Result<ReceivedOrder> decode(const std::string& text) {
  return supervisor::decode_json(text, "an order to fork", [](const Json& json) {
    ReceivedOrder received;
    std::uintptr_t address = 0;
    supervisor::read_member(json, "shim", received.order.shim_path);
    supervisor::read_member(json, "env", received.order.shim_env);
    supervisor::read_member(json, "name", received.order.function_name);
    supervisor::read_member(json, "address", address);
    supervisor::read_member(json, "module", received.module);
    int mask = kNoMask;
    supervisor::read_member(json, "mask", mask);
    if (mask != kNoMask) received.order.mask = static_cast<mode_t>(mask);
    received.order.function = reinterpret_cast<PlainFunction>(address);
    return received;
  });
}

// ---- the forker's process ----

class ForkerProcess {
 public:
  ForkerProcess(UniqueFd socket, UniqueFd program, std::function<void()> body)
      : socket_(std::move(socket)), program_(std::move(program)), body_(std::move(body)) {}

  [[noreturn]] void run() {
    ::setsid();  // the terminal's signals are for the program
    ::prctl(PR_SET_CHILD_SUBREAPER, 1);
    ::prctl(PR_SET_NAME, "accel-forker");
    supervisor::forget_handlers();
    ::signal(SIGCHLD, SIG_DFL);
    while (wait_and_serve()) {
    }
    end_job();
    ::_exit(0);
  }

 private:
  // False when the program has ended, or needs us no more.
  bool wait_and_serve() {
    pollfd fds[] = {
        {socket_.get(), POLLIN, 0}, {program_.get(), POLLIN, 0}, {shim_.get(), POLLIN, 0}};
    if (::poll(fds, std::size(fds), -1) < 0) return errno == EINTR;
    if (fds[2].revents != 0) end_job();
    if (fds[0].revents != 0) return serve_order();
    return fds[1].revents == 0;
  }

  bool serve_order() {
    char word = 0;
    std::vector<UniqueFd> fds;
    if (!receive_packet(socket_.get(), &word, sizeof word, fds) || fds.size() != kOrderFds)
      return false;
    auto received = decode(supervisor::read_memfd(fds[0].get()));
    if (!received) return false;
    received->fds = std::move(fds);
    end_job();  // the one before
    Answer answer;
    const auto function = resolve(*received);
    if (!function) {
      answer.error_number = kUnknownFunction;
    } else {
      answer = fork_shim(*received, function);
    }
    const bool has_shim = answer.error_number == 0;
    return send_packet(socket_.get(),
                       &answer,
                       sizeof answer,
                       has_shim ? std::vector<int>{shim_.get()} : std::vector<int>{});
  }

  std::function<void()> resolve(const ReceivedOrder& received) const {
    const ForkOrder& order = received.order;
    if (!order.function_name.empty()) return find_function(order.function_name);
    if (order.function == nullptr) return body_;
    const bool is_known = !received.module.empty() && module_of(order.function) == received.module;
    return is_known ? order.function : std::function<void()>();
  }

  Answer fork_shim(ReceivedOrder& received, const std::function<void()>& function) {
    const pid_t pid = ::fork();
    if (pid < 0) return {.error_number = errno};
    if (pid == 0) become_shim(received, function);
    shim_.reset(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));
    shim_pid_ = pid;
    return {.pid = pid, .error_number = shim_ ? 0 : errno};
  }

  [[noreturn]] void become_shim(ReceivedOrder& received, const std::function<void()>& function) {
    const pid_t forker = ::getppid();
    ::setsid();
    for (int i = 0; i < 3; ++i) ::dup2(received.fds[3 + static_cast<std::size_t>(i)].get(), i);
    if (::fchdir(received.fds[6].get()) != 0) ::_exit(127);
    if (received.order.mask) ::umask(*received.order.mask);
    int pair[2];
    if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) != 0) ::_exit(127);
    const pid_t self = ::getpid();
    const pid_t server = ::fork();
    if (server < 0) ::_exit(127);
    if (server == 0) {
      ::close(pair[0]);
      become_server(received, UniqueFd(pair[1]), self, function);
    }
    execute_shim(received, pair[0], server, forker);
  }

  // It must not hold what the program, the forker and the shim learn each other's end from.
  [[noreturn]] void become_server(ReceivedOrder& received,
                                  UniqueFd requests,
                                  pid_t shim,
                                  const std::function<void()>& function) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (::getppid() != shim) ::_exit(0);
    socket_.reset();
    program_.reset();
    received.fds.clear();
    supervisor::serve_forks(std::move(requests), [&] {
      ::prctl(PR_SET_NAME, program_invocation_short_name);
      return run_worker(function);
    });
  }

  [[noreturn]] static void execute_shim(ReceivedOrder& received,
                                        int server_socket,
                                        pid_t server,
                                        pid_t forker) {
    const ForkOrder& order = received.order;
    const int socket = received.fds[1].get();
    const int spec = received.fds[2].get();
    std::vector<std::string> arguments = {order.shim_path};
    for (const int number : {socket, spec, forker, server_socket, server})
      arguments.push_back(std::to_string(number));
    std::vector<std::string> variables;
    for (const auto& [name, value] : order.shim_env) variables.push_back(name + "=" + value);
    const auto pointers = [](std::vector<std::string>& texts) {
      std::vector<char*> list;
      for (std::string& text : texts) list.push_back(text.data());
      list.push_back(nullptr);
      return list;
    };
    (void)supervisor::close_on_exec_from(3);
    for (const int fd : {socket, spec, server_socket}) ::fcntl(fd, F_SETFD, 0);
    ::execve(order.shim_path.c_str(), pointers(arguments).data(), pointers(variables).data());
    ::_exit(127);
  }

  // Waits for the shim, which ends when its job has, and ends what it left behind.
  void end_job() {
    if (shim_pid_ == 0) return;
    siginfo_t info{};
    while (::waitid(P_PID, static_cast<id_t>(shim_pid_), &info, WEXITED) != 0 && errno == EINTR) {
    }
    shim_pid_ = 0;
    shim_.reset();
    supervisor::OrphanSweep sweep(real_system(), {.ancestor = ::getpid()}, kSweepLimit);
    SteadyClock clock;
    while (true) {
      supervisor::reap_all_children();
      const auto step = sweep.step(clock.now());
      if (step.verdict != supervisor::OrphanSweep::Verdict::kScanAgain) break;
      const auto wait = std::chrono::ceil<std::chrono::milliseconds>(step.wait);
      ::poll(nullptr, 0, static_cast<int>(wait.count()));
    }
    supervisor::reap_all_children();
  }

  UniqueFd socket_;
  UniqueFd program_;
  std::function<void()> body_;
  UniqueFd shim_;
  pid_t shim_pid_ = 0;
};

Error refused(const char* what) {
  return Error(ErrorCode::kSpawnFailed,
               std::string("cannot fork for workers: ") + what + ": " + errno_text(errno));
}

// What is buffered would be written by every copy.
void flush_buffers() {
  std::cout.flush();
  std::clog.flush();
  std::fflush(nullptr);
}

// The forker's pid in the program; does not return in the forker.
Result<pid_t> fork_forker(UniqueFd& theirs, UniqueFd& ours, std::function<void()> body) {
  int told[2];
  UniqueFd program(static_cast<int>(::syscall(SYS_pidfd_open, ::getpid(), 0)));
  if (!program) return refused("pidfd_open");
  if (::pipe2(told, O_CLOEXEC) != 0) return refused("pipe2");
  UniqueFd hears(told[0]);
  UniqueFd tells(told[1]);
  const supervisor::QuietSpan quiet;  // for ever in the forker
  const pid_t between = ::fork();
  if (between < 0) return refused("fork");
  if (between == 0) {
    const pid_t forker = ::fork();
    if (forker == 0) {
      ours.reset();
      hears.reset();
      tells.reset();
      ForkerProcess(std::move(theirs), std::move(program), std::move(body)).run();
    }
    (void)!::write(tells.get(), &forker, sizeof forker);
    ::_exit(0);
  }
  int status = 0;
  while (::waitpid(between, &status, 0) < 0 && errno == EINTR) {
  }
  tells.reset();
  pid_t forker = -1;
  if (::read(hears.get(), &forker, sizeof forker) != sizeof forker || forker < 0)
    return refused("fork");
  return forker;
}

}  // namespace

Result<Forker> Forker::start(std::function<void()> body) {
  int pair[2];
  if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) != 0)
    return refused("socketpair");
  UniqueFd ours(pair[0]);
  UniqueFd theirs(pair[1]);
  flush_buffers();
  auto pid = fork_forker(theirs, ours, std::move(body));
  if (!pid) return std::move(pid).error();
  return Forker(std::move(ours), *pid, ::getpid());
}

Error Forker::gone() const {
  const int number = errno;
  const std::string forker =
      "the process " + std::to_string(pid_) +
      " that workers are copies of (accel-forker) does not answer: " + errno_text(number);
  if (::getpid() != program_) {
    return Error(ErrorCode::kSpawnFailed,
                 forker + "; it ends with the process that called init_launcher(), which was " +
                     std::to_string(program_) + ", and this is " + std::to_string(::getpid()),
                 "call init_launcher() after daemon() or a fork() whose parent ends, not before");
  }
  return Error(ErrorCode::kSpawnFailed, forker, "find who ended it, and start the program again");
}

Result<StartedShim> Forker::launch(const ForkOrder& order) {
  const UniqueFd text = supervisor::memfd_with(encode(order));
  if (!text) return refused("memfd_create");
  const char word = 1;
  const std::vector<int> fds = {text.get(), order.socket, order.spec, 0, 1, 2, order.folder};
  if (!send_packet(socket_.get(), &word, sizeof word, fds)) return gone();
  Answer answer;
  std::vector<UniqueFd> received;
  errno = EPIPE;
  if (!receive_packet(socket_.get(), &answer, sizeof answer, received)) return gone();
  if (answer.error_number == kUnknownFunction) {
    return Error(ErrorCode::kInvalidArgument,
                 "the function to launch was not in the program when init_launcher() was called",
                 "call init_launcher() after the library with the function is loaded, or register "
                 "the function by name");
  }
  errno = answer.error_number;
  if (answer.error_number != 0 || received.size() != 1) return refused("fork");
  return StartedShim{answer.pid, std::move(received[0])};
}

}  // namespace accel::launch
