#include "libaccel/launch/launch_watch.h"

#include <atomic>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <optional>

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "runtime/supervisor/spawn/exit_error.h"

namespace accel::launch {
namespace {

using supervisor::Stop;
using supervisor::StopMode;

// A handler finds nothing but what is static. One launch at a time uses these.
std::atomic<int> g_event_fd = -1;
std::atomic<int> g_first_signal = 0;
std::atomic<int> g_num_signals = 0;
std::atomic<int> g_to_raise = 0;
static_assert(std::atomic<int>::is_always_lock_free);

void note_signal(int signal) {
  const int saved_errno = errno;
  int none = 0;
  g_first_signal.compare_exchange_strong(none, signal);
  ++g_num_signals;
  const std::uint64_t one = 1;
  (void)!::write(g_event_fd.load(), &one, sizeof one);
  errno = saved_errno;
}

void write_line(const std::string& text) {
  std::fprintf(stderr, "accel: %s\n", text.c_str());
}

// Error files are read at the end of the job alone.
std::string describe(const supervisor::Restarting& restarting, int num_workers) {
  const std::string said = supervisor::own_reason(restarting.because, {});
  return supervisor::error_of(restarting.because,
                              supervisor::rank_name(restarting.because, num_workers))
             .message() +
         (said.empty() ? "" : ": " + said) + "; restart " +
         std::to_string(restarting.next_generation);
}

}  // namespace

HeldSignals::HeldSignals() {
  g_first_signal = 0;
  g_num_signals = 0;
  g_to_raise = 0;
  g_event_fd = ::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  for (std::size_t i = 0; i < std::size(kSignals); ++i) {
    ::sigaction(kSignals[i], nullptr, &before_[i]);
    if (before_[i].sa_handler != SIG_DFL) continue;
    struct sigaction noting {};
    noting.sa_handler = note_signal;
    noting.sa_flags = SA_RESTART;
    is_held_[i] = ::sigaction(kSignals[i], &noting, nullptr) == 0;
  }
}

HeldSignals::~HeldSignals() {
  for (std::size_t i = 0; i < std::size(kSignals); ++i) {
    if (is_held_[i]) ::sigaction(kSignals[i], &before_[i], nullptr);
  }
  if (g_to_raise == 0) g_to_raise = g_first_signal.load();
  ::close(g_event_fd.exchange(-1));
  if (g_to_raise != 0) ::kill(::getpid(), g_to_raise);
}

int HeldSignals::fd() const noexcept {
  return g_event_fd;
}

void HeldSignals::wake() const noexcept {
  const std::uint64_t one = 1;
  (void)!::write(g_event_fd.load(), &one, sizeof one);
}

HeldSignals::Noted HeldSignals::take() {
  std::uint64_t times = 0;
  (void)!::read(g_event_fd.load(), &times, sizeof times);
  const Noted noted = {.first = g_first_signal, .count = g_num_signals.exchange(0)};
  if (noted.first != 0) g_to_raise = noted.first;
  return noted;
}

Result<supervisor::JobOutcome> watch_job(supervisor::WorkerHost& host,
                                         HeldSignals& signals,
                                         std::stop_token stop) {
  const std::stop_callback wake(stop, [&signals] { signals.wake(); });
  int num_workers = 1;
  int num_stops = 0;
  bool is_stop_told = false;
  while (true) {
    pollfd fds[] = {{signals.fd(), POLLIN, 0}, {host.event_fd(), POLLIN, 0}};
    if (::poll(fds, std::size(fds), -1) < 0 && errno != EINTR)
      return Error(ErrorCode::kInternal, "cannot wait for workers: " + errno_text(errno));
    const HeldSignals::Noted noted = signals.take();
    for (int i = 0; i < noted.count; ++i) {
      const StopMode mode = noted.first == SIGINT ? StopMode::kInterrupt : StopMode::kTerminate;
      host.request(Stop{.mode = num_stops++ > 0 ? StopMode::kKill : mode, .signal = noted.first});
    }
    if (stop.stop_requested() && !std::exchange(is_stop_told, true))
      host.request(Stop{.mode = StopMode::kTerminate, .signal = SIGTERM});
    while (true) {
      auto event = host.next_event();
      if (!event) return std::move(event).error();
      if (!*event) break;
      if (const auto* started = std::get_if<supervisor::GenerationStarted>(&**event)) {
        num_workers = static_cast<int>(started->pids.size());
      } else if (const auto* restarting = std::get_if<supervisor::Restarting>(&**event)) {
        write_line(describe(*restarting, num_workers));
      } else if (const auto* notice = std::get_if<supervisor::Notice>(&**event)) {
        write_line(notice->text);
      } else if (const auto* outcome = std::get_if<supervisor::JobOutcome>(&**event)) {
        return *outcome;
      }
    }
  }
}

}  // namespace accel::launch
