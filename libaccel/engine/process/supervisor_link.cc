// Stacks are written by the threads themselves: one thread sleeps on the channel's request word,
// sends a real-time signal to each thread in turn and waits for its handler. Only a thread can walk
// its own stack safely, and one after the other keeps the output readable. backtrace() is called
// once beforehand, because its first call allocates.

#include "libaccel/engine/process/supervisor_link.h"

#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <filesystem>
#include <mutex>
#include <optional>
#include <thread>

#include <execinfo.h>
#include <pthread.h>
#include <semaphore.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace accel::detail {
namespace {

using namespace std::chrono_literals;

// Never destroyed: threads and the handler of uncaught exceptions use it until the very end.
struct Link {
  WorkerChannel channel;
  std::terminate_handler previous_terminate = nullptr;
};

std::atomic<Link*> g_link{nullptr};
std::atomic<std::uint64_t> g_steps{0};
sem_t g_stack_written;

int stack_signal() {
  return SIGRTMIN + 6;
}

void write_text(const char* text) {
  (void)!::write(STDERR_FILENO, text, std::strlen(text));
}

// Async-signal-safe: no allocation, no lock.
void write_own_stack(int /*signal*/) {
  const int saved = errno;
  std::array<char, 32> name{};
  ::pthread_getname_np(::pthread_self(), name.data(), name.size());
  write_text("stack of thread ");
  write_text(name.data());
  write_text(":\n");
  std::array<void*, 64> frames{};
  const int depth = ::backtrace(frames.data(), frames.size());
  ::backtrace_symbols_fd(frames.data(), depth, STDERR_FILENO);
  ::sem_post(&g_stack_written);
  errno = saved;
}

void ask_thread(pid_t thread) {
  if (::syscall(SYS_tgkill, ::getpid(), thread, stack_signal()) != 0) return;  // it has ended
  timespec deadline{};
  ::clock_gettime(CLOCK_REALTIME, &deadline);
  deadline.tv_sec += 1;  // a thread inside the kernel that cannot take signals is passed over
  while (::sem_timedwait(&g_stack_written, &deadline) != 0 && errno == EINTR) {
  }
}

void write_all_stacks() {
  const auto self = static_cast<pid_t>(::syscall(SYS_gettid));
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/task", error)) {
    const auto thread = static_cast<pid_t>(std::atol(entry.path().filename().c_str()));
    if (thread > 0 && thread != self) ask_thread(thread);
  }
}

void watch_requests(WorkerChannel& channel) {
  WorkerRequests seen;
  while (true) {
    seen = channel.wait_for_requests(seen, 1h);
    if (!seen.has(WorkerRequest::kDumpStacks)) continue;
    channel.done_with(WorkerRequest::kDumpStacks);
    seen = channel.requests();
    write_all_stacks();
  }
}

void start_watching(WorkerChannel& channel) {
  std::array<void*, 1> warm_up{};
  (void)::backtrace(warm_up.data(), warm_up.size());
  ::sem_init(&g_stack_written, 0, 0);
  struct sigaction action {};
  action.sa_handler = write_own_stack;
  action.sa_flags = SA_RESTART;
  ::sigaction(stack_signal(), &action, nullptr);
  sigset_t all;
  sigset_t before;
  ::sigfillset(&all);
  ::pthread_sigmask(SIG_SETMASK, &all, &before);
  std::thread([&channel] {
    ::pthread_setname_np(::pthread_self(), "accel-requests");
    watch_requests(channel);
  }).detach();
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

[[noreturn]] void record_and_terminate() {
  Link* const link = g_link.load();
  if (const auto uncaught = std::current_exception(); uncaught && link != nullptr) {
    try {
      std::rethrow_exception(uncaught);
    } catch (const std::exception& error) {
      link->channel.set_error(error.what());
    } catch (...) {
      link->channel.set_error("an exception that is no std::exception was not caught");
    }
  }
  if (link != nullptr && link->previous_terminate != nullptr) link->previous_terminate();
  std::abort();
}

}  // namespace

void connect_to_supervisor(const EnvLookup& env) {
  static std::once_flag once;
  std::call_once(once, [&] {
    Result<std::optional<WorkerChannel>> opened = WorkerChannel::open(env);
    if (!opened && opened.error().code() == ErrorCode::kChannelCorrupt) return;
    std::optional<WorkerChannel> channel = or_throw(std::move(opened));
    if (!channel) return;
    auto* const link = new Link{.channel = *std::move(channel)};
    g_link = link;
    link->channel.heartbeat({.phase = WorkerPhase::kStarting});
    link->previous_terminate = std::set_terminate(record_and_terminate);
    start_watching(link->channel);
  });
}

WorkerChannel* supervisor_channel() noexcept {
  Link* const link = g_link.load();
  return link == nullptr ? nullptr : &link->channel;
}

void beat(WorkerPhase phase) noexcept {
  const std::uint64_t step = g_steps.fetch_add(1) + 1;
  if (Link* const link = g_link.load()) link->channel.heartbeat({.step = step, .phase = phase});
}

}  // namespace accel::detail
