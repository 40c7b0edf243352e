#include "launcher/start/machines/run/etcd_launch.h"

#include <cerrno>
#include <csignal>
#include <utility>

#include <poll.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include "launcher/cluster_entry/cluster_library.h"
#include "launcher/run/launch_loop.h"
#include "launcher/start/machines/main/etcd_meeting.h"
#include "launcher/start/machines/run/job_words.h"
#include "runtime/supervisor/shim/job_record.h"
#include "runtime/supervisor/store/tcp_listener.h"
#include "runtime/text/host_name.h"
#include "runtime/text/random_digits.h"

namespace accel::launcher {
namespace {

// The port that was named, if it is free, or one that is, kept until the store listens there, and between the stores of a
// job that begins again. Nobody gets through to it before that: the others ask again.
Result<supervisor::TcpListener> keep_port(const std::string& own_address, std::uint16_t wanted) {
  const bool is_v6 = own_address.find(':') != std::string::npos;
  return supervisor::reserve_tcp({.bind_address = is_v6 ? "::" : "0.0.0.0",
                                  .port = wanted,
                                  .exact_port = wanted != 0,
                                  .members = {}});
}

bool ends_a_launch(int signal) {
  return signal == SIGINT || signal == SIGTERM || signal == SIGHUP || signal == SIGUSR1;
}

struct Interruption {
  int signal = 0;  // that ended the pause; 0: none
  bool is_from_terminal = false;
};

Interruption pause_for_signal(int fd, Duration pause) {
  const auto milliseconds = std::chrono::duration_cast<std::chrono::milliseconds>(pause).count();
  pollfd waiting = {fd, POLLIN, 0};
  if (::poll(&waiting, 1, static_cast<int>(milliseconds)) != 1) return {};
  signalfd_siginfo info{};
  while (::read(fd, &info, sizeof info) == sizeof info) {
    const int signal = static_cast<int>(info.ssi_signo);
    if (ends_a_launch(signal)) return {signal, info.ssi_code == SI_KERNEL};
    if (signal == SIGTSTP) ::raise(SIGSTOP);
  }
  return {};
}

}  // namespace

Result<MachinesEnding> launch_by_etcd(MachinesLaunchOptions options, NoticeQueue& notices) {
  // Before gRPC's threads begin: they shall not take the launcher's signals.
  const auto signals = TakenSignals::take();
  if (!signals) return signals.error();
  const auto functions = load_etcd_functions();
  if (!functions) return functions.error();
  MachinesSettings& settings = options.settings;
  const auto seat = (*functions)->open(*settings.etcd, settings.run_id);
  if (!seat) return seat.error();
  auto kept = keep_port((*seat)->own_address(), settings.port);
  if (!kept) return std::move(kept).error();

  JobWords words(notices, options.report, options.quiet);
  const MainPlace own = {.id = random_digits(32),
                         .host = host_name(),
                         .address = (*seat)->own_address(),
                         .port = kept->endpoint.port()};
  Interruption end;
  const auto met = meet_by_etcd(**seat,
                                own,
                                settings.join_timeout,
                                {.now = [] { return SteadyClock().now(); },
                                 .pause =
                                     [&](Duration pause) {
                                       end = pause_for_signal(signals->fd(), pause);
                                       return end.signal;
                                     },
                                 .say = [&](const std::string& text) { words.say(text); },
                                 .program = settings.program});
  if (!met) return met.error();
  if (met->signal != 0)
    return MachinesEnding{.exit_code = supervisor::exit_code_after(met->signal),
                          .is_interrupted = end.signal == SIGINT && end.is_from_terminal,
                          .outcome = std::nullopt};
  if (met->is_ours) settings.machine_rank = 0;
  settings.may_be_main = met->is_ours;
  settings.address = met->main.address;
  settings.port = met->main.port;
  if (met->is_ours) {
    options.seat = seat->get();
  } else {
    kept->socket.reset();
    words.say("joins machine 0, " + met->main.describe());
  }
  return launch_machines(std::move(options), notices);
}

}  // namespace accel::launcher
