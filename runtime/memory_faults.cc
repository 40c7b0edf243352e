#include "runtime/memory_faults.h"

#include <atomic>
#include <cerrno>
#include <mutex>

namespace accel {
namespace {

struct Added {
  FaultHandler handle;
  const Added* behind;
};

// Of one signal.
struct Faults {
  std::atomic<const Added*> mending{nullptr};
  std::atomic<const Added*> telling{nullptr};
  std::once_flag is_installed;
  struct sigaction previous = {};
};

constinit Faults g_segv;
constinit Faults g_bus;

Faults& faults_of(int signal) noexcept {
  return signal == SIGBUS ? g_bus : g_segv;
}

bool ask(const std::atomic<const Added*>& added, const siginfo_t& info) noexcept {
  for (const Added* one = added.load(std::memory_order_acquire); one != nullptr; one = one->behind)
    if (one->handle(info)) return true;
  return false;
}

void hand_on(int signal, siginfo_t* info, void* context) noexcept {
  const struct sigaction& previous = faults_of(signal).previous;
  if ((previous.sa_flags & SA_SIGINFO) != 0) {
    previous.sa_sigaction(signal, info, context);
    return;
  }
  if (previous.sa_handler != SIG_DFL && previous.sa_handler != SIG_IGN) {
    previous.sa_handler(signal);
    return;
  }
  if (previous.sa_handler == SIG_IGN && info->si_code <= 0) return;  // sent, and ignored as before
  // The instruction runs again after this, into what was there before; a signal that somebody sent does not.
  ::sigaction(signal, &previous, nullptr);
  if (info->si_code <= 0) ::raise(signal);
}

void handle_fault(int signal, siginfo_t* info, void* context) noexcept {
  const int kept_errno = errno;
  const Faults& faults = faults_of(signal);
  const bool is_sent = info->si_code <= 0;
  const bool is_mended = !is_sent && (ask(faults.mending, *info) || ask(faults.telling, *info));
  errno = kept_errno;
  if (!is_mended) hand_on(signal, info, context);
}

}  // namespace

void add_fault_handler(int signal, FaultHandler handler, FaultRole role) {
  Faults& faults = faults_of(signal);
  std::atomic<const Added*>& last = role == FaultRole::kMends ? faults.mending : faults.telling;
  auto* const added = new Added{handler, last.load()};  // NOLINT: never freed
  while (!last.compare_exchange_weak(added->behind, added)) {
  }
  std::call_once(faults.is_installed, [&] {
    struct sigaction action = {};
    action.sa_sigaction = &handle_fault;
    action.sa_flags = SA_SIGINFO | SA_ONSTACK;
    ::sigemptyset(&action.sa_mask);
    ::sigaction(signal, &action, &faults.previous);
  });
}

bool are_faults_seen_first(int signal) noexcept {
  struct sigaction present = {};
  return ::sigaction(signal, nullptr, &present) == 0 && (present.sa_flags & SA_SIGINFO) != 0 &&
         present.sa_sigaction == &handle_fault;
}

}  // namespace accel
