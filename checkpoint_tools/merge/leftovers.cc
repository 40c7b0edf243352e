#include "checkpoint_tools/merge/leftovers.h"

#include <csignal>
#include <iterator>
#include <utility>

#include <unistd.h>

namespace accel::launcher {
namespace {

constexpr int kEndingSignals[] = {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGXFSZ};
struct sigaction actions_before[std::size(kEndingSignals)];

// While it lives, none of them comes to this thread, which is the program's only one: the chain of leftovers is whole
// whenever a handler reads it.
class SignalsHeldBack {
 public:
  SignalsHeldBack() {
    sigset_t signals;
    ::sigemptyset(&signals);
    for (const int signal : kEndingSignals) ::sigaddset(&signals, signal);
    ::pthread_sigmask(SIG_BLOCK, &signals, &before_);
  }
  ~SignalsHeldBack() { ::pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  SignalsHeldBack(const SignalsHeldBack&) = delete;
  SignalsHeldBack& operator=(const SignalsHeldBack&) = delete;

 private:
  sigset_t before_{};
};

}  // namespace

Leftovers* Leftovers::newest_ = nullptr;
bool Leftovers::are_watched_ = false;

Leftovers::Leftovers(std::string file, std::vector<std::string> folders)
    : file_(std::move(file)),
      folders_(std::move(folders)),
      is_watched_(are_watched_),
      older_(nullptr) {
  if (!is_watched_) return;
  const SignalsHeldBack held;
  if (newest_ == nullptr) watch_signals();
  older_ = newest_;
  newest_ = this;
}

Leftovers::~Leftovers() {
  if (!is_watched_) return;
  const SignalsHeldBack held;
  Leftovers** link = &newest_;
  while (*link != this) link = &(*link)->older_;
  *link = older_;
  if (newest_ == nullptr) leave_signals();
}

void Leftovers::remove() const noexcept {
  ::unlink(file_.c_str());
  for (const std::string& folder : folders_) ::rmdir(folder.c_str());
}

// The signal is held back until the handler returns; then it ends the program as if nobody had watched it.
void Leftovers::end_without_leftovers(int signal) {
  for (const Leftovers* one = newest_; one != nullptr; one = one->older_) one->remove();
  ::signal(signal, SIG_DFL);
  ::raise(signal);
}

void Leftovers::watch_signals() {
  struct sigaction action {};
  action.sa_handler = end_without_leftovers;
  ::sigfillset(&action.sa_mask);
  for (std::size_t i = 0; i < std::size(kEndingSignals); ++i) {
    ::sigaction(kEndingSignals[i], nullptr, &actions_before[i]);
    if (actions_before[i].sa_handler == SIG_DFL) ::sigaction(kEndingSignals[i], &action, nullptr);
  }
}

void Leftovers::leave_signals() {
  for (std::size_t i = 0; i < std::size(kEndingSignals); ++i)
    ::sigaction(kEndingSignals[i], &actions_before[i], nullptr);
}

}  // namespace accel::launcher
