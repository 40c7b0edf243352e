// One loop: the shim's events, signals, and a tick that exchanges the board with the store.
//
//   machine 0     open the store in the shim -> connect to it as a client -> exchange
//   the others    connect, again and again -> exchange

#include "launcher/start/machines/run/machines_launch.h"

#include <chrono>
#include <csignal>
#include <utility>

#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/steady_timer.hpp>
#include <fcntl.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include "launcher/run/launch_loop.h"
#include "launcher/start/machines/board/timing.h"
#include "launcher/start/machines/decisions/leader.h"
#include "launcher/start/machines/decisions/machine.h"
#include "launcher/start/machines/main/etcd_meeting.h"
#include "launcher/start/machines/main/main_store.h"
#include "launcher/start/machines/run/job_words.h"
#include "launcher/start/machines/run/shim_link.h"
#include "runtime/clock.h"
#include "runtime/printable.h"
#include "runtime/supervisor/shim/job_record.h"
#include "runtime/supervisor/spawn/exit_report.h"
#include "runtime/text/host_name.h"
#include "runtime/text/random_digits.h"
#include "runtime/text/seconds_text.h"

namespace accel::launcher {
namespace {

namespace asio = boost::asio;
using namespace std::chrono_literals;
using supervisor::HostEvent;
using supervisor::StopMode;

constexpr auto kLongestPause = 2s;  // between two ticks, as long as nobody stops us
constexpr auto kSayWaiting = 5s;
constexpr auto kRegroupLimit = 60s;  // from one generation to the next

BoardSeal seal_with(const std::optional<JobToken>& token) {
  if (!token) return {};
  return BoardSeal([token = *token](auto session, auto key, auto text) {
    return token.prove(session, key, text);
  });
}

class MachinesLaunch {
 public:
  MachinesLaunch(MachinesLaunchOptions options, NoticeQueue& notices, const TakenSignals& signals)
      : options_(std::move(options)),
        settings_(options_.settings),
        notices_(notices),
        words_(notices, options_.report, options_.quiet, [this] { shim_.hide_progress(); }),
        loop_(options_.watch != nullptr ? options_.watch->loop() : own_loop_),
        signals_(loop_, ::fcntl(signals.fd(), F_DUPFD_CLOEXEC, 3)),
        shim_(loop_,
              {.on_event = [this](const HostEvent& event) { on_event(event); },
               .on_lost = [this](Error why) { lose_shim(std::move(why)); }}),
        tick_(loop_),
        store_(loop_,
               settings_,
               seal_with(options_.token),
               {.on_found = [this] { begin(); },
                .open =
                    [this](const std::string& address) {
                      shim_.open_store(generation_, address, settings_.port);
                    },
                .on_up = [this] { on_up(); },
                .on_gone = [this] { on_gone(); },
                .on_fault = [this](const Error& why) { on_fault(why); },
                .say = [this](const std::string& text) { words_.say(text); }}) {
    options_.spec.control = supervisor::GenerationControl::kOwner;
    options_.spec.identity.run_id = settings_.run_id;
  }

  Result<MachinesEnding> run() {
    auto started = shim_.start(options_.spec,
                               {.line = options_.progress, .notices = &notices_, .is_ours = [this] {
                                  return settings_.is_main();
                                }});
    if (!started) return std::move(started).error();
    if (options_.watch != nullptr) let_watch(*options_.watch);
    wait_for_signals();
    began_at_ = generation_began_at_ = ticked_at_ = clock_.now();
    card_ = {.id = random_digits(32),
             .run_id = settings_.run_id,
             .rank = settings_.machine_rank.value_or(0),
             .num_machines = settings_.num_machines,
             .num_workers = static_cast<int>(options_.spec.workers.size()),
             .num_processes = settings_.num_processes,
             .device = settings_.device,
             .host = host_name(),
             .address = {}};
    store_.find();
    schedule(tick_pause(settings_.num_machines, false));
    loop_.run();
    end_watch();
    if (lost_shim_) return *lost_shim_;
    const auto status = conclude();
    if (!status) return status.error();
    return MachinesEnding{
        .exit_code = *status,
        .is_interrupted = has_ctrl_c_ && *status == supervisor::exit_code_after(SIGINT),
        .world_size = machine_ && machine_->plan() ? machine_->plan()->world_size() : 1,
        .outcome = std::move(outcome_)};
  }

 private:
  // ---- who watches ----

  void let_watch(WatchService& watch) {
    watch.attend({.request = [this](const auto& request) { shim_.request(request); },
                  .stop =
                      [this](const std::string& from) {
                        words_.say(from + " stops the job");
                        on_signal(SIGTERM);
                      }});
  }

  // What the workers of this machine came to is the job's end only together with the verdict.
  void tell_watch(const HostEvent& event) {
    if (options_.watch == nullptr) return;
    const auto* outcome = std::get_if<supervisor::JobOutcome>(&event);
    if (outcome == nullptr) return options_.watch->hear(event);
    supervisor::JobOutcome ended = *outcome;
    const std::optional<Verdict> verdict = machine_ ? machine_->verdict() : std::nullopt;
    ended.success = verdict && verdict->kind == VerdictKind::kSucceeded;
    if (!ended.success && verdict) ended.reason = verdict->text;
    options_.watch->hear(ended);
  }

  // The loop is the watch's: what is cancelled here may still run in it, while this value is there.
  void end_watch() {
    if (options_.watch == nullptr) return;
    signals_.cancel();
    tick_.cancel();
    store_.close();
    if (lost_shim_) options_.watch->lose(*lost_shim_);
    options_.watch->finish();
  }

  // ---- one generation ----

  void begin() {
    machine_.reset();
    leader_.reset();
    if (generation_ > 0) generation_began_at_ = clock_.now();
    store_.begin(generation_);
  }

  void on_up() {
    last_answer_ = clock_.now();
    if (machine_) return;
    card_.generation = generation_;
    card_.address = store_.own_address();
    if (store_.is_main()) {
      leader_.emplace(card_,
                      LeaderOptions{.join_limit = limit(),
                                    .waited = clock_.now() - generation_began_at_,
                                    .restart_count = generation_,
                                    .max_restarts = options_.spec.restart.max_restarts,
                                    .program = settings_.program});
    }
    const bool draws_rank = !settings_.machine_rank && !store_.is_main() && generation_ == 0;
    machine_.emplace(card_, draws_rank, settings_.program, settings_.port_flag());
    store_.join(card_);
    exchange();
  }

  void on_fault(const Error& why) {
    if (!is_leaving_ && !(machine_ && machine_->plan())) end_with(why);
  }

  void on_gone() {
    if (machine_ && machine_->has_joined() && !is_leaving_) lose_main();
  }

  // ---- the tick ----

  void schedule(Duration after) {
    tick_.expires_after(after);
    tick_.async_wait([this](const boost::system::error_code& cancelled) {
      if (!cancelled) tick();
    });
  }

  void tick() {
    if (notices_.waiting_fd() >= 0) notices_.write_some();
    shim_.progress().look();
    watch_times();
    exchange();
    schedule(tick_pause(settings_.num_machines, machine_ && machine_->is_running()));
  }

  void exchange() {
    if (!machine_ || !store_.is_idle()) return;
    supervisor::StoreExchange wanted;
    machine_->add_to(wanted);
    if (leader_) leader_->add_to(wanted);
    store_.exchange(wanted, [this, tells = is_suspending_](const Board& board) {
      last_answer_ = clock_.now();
      if (leader_) leader_->look(board, last_answer_);
      leave_seat_when_over();
      apply(machine_->take(board));
      tell_verdict();
      if (leaves_when_done()) finish();
      // An exchange that was under way when the signal came did not carry the beat that says so.
      if (is_suspending_) tells ? suspend_now() : exchange();
    });
  }

  // Before the verdict is on the board. One that comes before the plan is for machines that come late, too.
  void leave_seat_when_over() {
    const bool is_over = leader_ && leader_->verdict() && machine_->plan() &&
                         leader_->verdict()->kind != VerdictKind::kRestart;
    if (is_over && options_.seat) std::exchange(options_.seat, nullptr)->give_up();
  }

  [[nodiscard]] std::optional<Error> seat_fault() const {
    const bool is_needed = options_.seat && machine_ && !machine_->plan() && !is_leaving_;
    return is_needed ? find_lost_seat(*options_.seat) : std::nullopt;
  }

  void watch_times() {
    const TimePoint now = clock_.now();
    const bool has_joined = machine_ && machine_->has_joined();
    // We were stopped ourselves: the silence is ours.
    const Duration late = now - std::exchange(ticked_at_, now);
    if (late > kLongestPause) {
      last_answer_ += late;
      store_.pardon(late);
    }
    const auto fault = has_joined || is_leaving_ ? std::nullopt : store_.fault(now);
    if (fault) return end_with(*fault);
    if (const auto lost = seat_fault()) return end_with(*lost);
    if (has_joined && !is_leaving_ && now - last_answer_ >= kLostAfter) return lose_main();
    if (is_leaving_ || has_joined || leader_) return say_who_is_missing(now);
    if (!store_.is_looking()) return;
    if (!has_said_waiting_ && now - generation_began_at_ >= kSayWaiting) {
      has_said_waiting_ = true;
      words_.say("waiting for machine 0 at " + store_.describe_way() + ", for at most " +
                 seconds_text(limit()));
    }
    if (now - generation_began_at_ < limit()) return;
    Error error(ErrorCode::kStoreUnreachable,
                "machine 0 could not be reached at " + store_.describe_way() + " within " +
                    seconds_text(limit()),
                "start " + std::string(name_of(settings_.program)) + " on machine 0; check " +
                    settings_.place_flags() + ", and that no firewall closes the port");
    end_with(std::move(error));
  }

  [[nodiscard]] Duration limit() const {
    return generation_ == 0 ? Duration(settings_.join_timeout) : Duration(kRegroupLimit);
  }

  void say_who_is_missing(TimePoint now) {
    const int joined = leader_ && !leader_->verdict() ? leader_->num_joined() : 0;
    const bool is_waiting = joined > 0 && joined < settings_.num_machines;  // 0: nor we ourselves
    if (!is_waiting || has_said_missing_ || now - began_at_ < kSayWaiting) return;
    has_said_missing_ = true;
    words_.say(std::to_string(joined) + " of " + std::to_string(settings_.num_machines) +
               " machines joined; waiting for " + leader_->missing() + ", for at most " +
               seconds_text(limit()));
  }

  void lose_main() {
    Error error(ErrorCode::kCoordinatorLost,
                "machine 0 at " + store_.name() + " is gone" +
                    (store_.last_trouble().empty() ? "" : ": " + store_.last_trouble()),
                "look at that machine, then start the job again on all of them");
    if (store_.last_trouble().empty()) {
      error.with_detail("silent", "for " + seconds_text(clock_.now() - last_answer_));
    }
    store_.close();
    apply(machine_->fail(std::move(error)));
  }

  // ---- what is to be done ----

  void apply(const MachineActions& actions) {
    for (const MachineAction& action : actions) {
      if (const auto* prepare = std::get_if<PrepareWorkers>(&action)) {
        prepare_workers(*prepare);
      } else if (std::holds_alternative<StartWorkers>(action)) {
        is_busy_ = true;
        shim_.start_workers(generation_, settings_);
      } else if (const auto* stop = std::get_if<StopWorkers>(&action)) {
        stop_workers(stop->signal == SIGINT ? StopMode::kInterrupt : StopMode::kTerminate,
                     stop->signal);
      } else if (std::holds_alternative<BeginAgain>(action)) {
        begins_again_ = true;
        if (!leader_) begin_again();
      } else if (std::holds_alternative<Leave>(action)) {
        is_leaving_ = true;
        if (leaves_when_done()) finish();
      }
    }
    if (begins_again_ && leader_ && leader_->is_done()) begin_again();
  }

  void prepare_workers(const PrepareWorkers& prepare) {
    store_.settle_on_main();
    card_.rank = machine_->card().rank;  // it may have been drawn
    settings_.machine_rank = card_.rank;
    if (options_.watch != nullptr)
      options_.watch->place_workers(prepare.first_rank, prepare.world_size);
    shim_.prepare(generation_, prepare, settings_, store_.is_main());
  }

  void stop_workers(StopMode mode, int signal) {
    const bool is_limited = signal != 0 && options_.grace;
    const auto grace = is_limited ? options_.grace(signal) : supervisor::Milliseconds(-1);
    shim_.stop_workers(generation_, mode, grace);
  }

  void begin_again() {
    begins_again_ = false;
    words_.say(printable(machine_->verdict()->text) + "; restart " +
               std::to_string(generation_ + 1) + " of " +
               std::to_string(options_.spec.restart.max_restarts) + " on all machines");
    ++generation_;
    has_told_ = false;
    shim_.progress().restarting();
    tell_watch(restarting());
    begin();
  }

  // As a shim tells of its own; where a worker of another machine failed, those here were stopped.
  supervisor::Restarting restarting() {
    supervisor::WorkerExit elsewhere;
    elsewhere.global_rank = -1;
    elsewhere.cause = supervisor::ExitCause::kStoppedByUs;
    return {.next_generation = generation_,
            .because = std::exchange(failed_here_, std::nullopt).value_or(elsewhere)};
  }

  [[nodiscard]] bool leaves_when_done() const {
    const bool is_free = !leader_ || leader_->is_done() || num_signals_ > 1 || machine_->error();
    return is_leaving_ && !is_busy_ && !is_finishing_ && (is_free || !leader_->verdict());
  }

  void finish() {
    is_finishing_ = true;
    store_.close();
    shim_.request(supervisor::Finish{});
  }

  void end_with(Error why) {
    error_ = std::move(why);
    is_leaving_ = true;
    finish();
  }

  // ---- the shim ----

  void lose_shim(Error why) {
    lost_shim_ = std::move(why);
    loop_.stop();
  }

  void on_event(const HostEvent& event) {
    tell_watch(event);
    if (std::holds_alternative<supervisor::StoreOpened>(event)) {
      store_.opened();
    } else if (std::holds_alternative<supervisor::Prepared>(event)) {
      machine_->workers_ready();
    } else if (const auto* failed = std::get_if<supervisor::PrepareFailed>(&event)) {
      machine_ ? machine_->workers_not_ready(failed->error) : store_.not_opened(failed->error);
    } else if (const auto* exit = std::get_if<supervisor::WorkerExit>(&event)) {
      if (!exit->is_failure()) return exchange();
      if (exit->is_preempted(options_.spec.stop.requeue_exit_code)) {
        machine_->worker_preempted(*exit);
        return exchange();
      }
      if (!failed_here_) failed_here_ = *exit;
      machine_->worker_failed(*exit);
    } else if (const auto* ended = std::get_if<supervisor::GenerationEnded>(&event)) {
      is_busy_ = false;
      machine_->workers_ended(ended->outcome);
      if (leaves_when_done()) return finish();
    } else if (const auto* notice = std::get_if<supervisor::Notice>(&event)) {
      words_.say(notice->text);
    } else if (const auto* refused = std::get_if<supervisor::Refused>(&event)) {
      return lose_shim(refused->error);
    } else if (const auto* outcome = std::get_if<supervisor::JobOutcome>(&event)) {
      outcome_ = *outcome;
      return loop_.stop();
    } else {
      return;
    }
    exchange();
  }

  // ---- signals ----

  void wait_for_signals() {
    signals_.async_wait(
        asio::posix::descriptor_base::wait_read, [this](const boost::system::error_code& failure) {
          if (failure) return;
          signalfd_siginfo info{};
          while (::read(signals_.native_handle(), &info, sizeof info) == sizeof info) {
            const int signal = static_cast<int>(info.ssi_signo);
            has_ctrl_c_ |= signal == SIGINT && info.ssi_code == SI_KERNEL;
            on_signal(signal);
          }
          wait_for_signals();
        });
  }

  void on_signal(int signal) {
    switch (signal) {
      case SIGINT:
      case SIGTERM:
      case SIGHUP:
      case SIGUSR1:
        ask_to_stop(signal);
        return shim_.end_progress();
      case SIGTSTP:
        is_suspending_ = true;
        if (machine_) machine_->suspend(true);
        shim_.request(supervisor::Suspend{});
        return store_.is_up() ? exchange() : suspend_now();
      case SIGCONT:
        return shim_.request(supervisor::Resume{});
      case SIGQUIT:
        return shim_.request(supervisor::DumpStacks{});
      case SIGWINCH:
        return shim_.progress().show();
      default:
        return;
    }
  }

  // The others know of it: the beat that says so was answered.
  void suspend_now() {
    is_suspending_ = false;
    shim_.hide_progress();
    ::raise(SIGSTOP);
    if (machine_) machine_->suspend(false);
    last_answer_ = clock_.now();
    shim_.request(supervisor::Resume{});
  }

  void ask_to_stop(int signal) {
    if (options_.watch != nullptr) options_.watch->ask_to_stop();
    if (++num_signals_ > 1) {
      if (is_busy_) stop_workers(StopMode::kKill, 0);
      is_leaving_ = true;
      if (leaves_when_done()) finish();
      return;
    }
    stop_signal_ = signal;
    if (machine_ && (machine_->has_joined() || store_.is_up())) {
      apply(machine_->asked_to_stop(signal, supervisor::signal_name(signal)));
      return exchange();
    }
    is_leaving_ = true;
    finish();
  }

  // ---- the end ----

  // At once: machine 0 may stay for others that come late.
  void tell_verdict() {
    if (!machine_->verdict() || std::exchange(has_told_, true)) return;
    const Verdict& verdict = *machine_->verdict();
    if (verdict.kind == VerdictKind::kStopped && options_.watch != nullptr)
      options_.watch->ask_to_stop();
    words_.tell(verdict, card_.rank);
  }

  Result<int> conclude() {
    if (error_) return *error_;
    if (!machine_) return supervisor::exit_code_after(stop_signal_);
    if (!machine_->verdict()) {
      if (machine_->error()) return *machine_->error();
      return supervisor::exit_code_after(stop_signal_);
    }
    const Verdict& verdict = *machine_->verdict();
    const int world_size = machine_->plan() ? machine_->plan()->world_size() : 1;
    words_.report(verdict, card_.rank, *outcome_, world_size);
    return verdict.exit_code;
  }

  MachinesLaunchOptions options_;
  MachinesSettings settings_;
  NoticeQueue& notices_;
  JobWords words_;
  SteadyClock clock_;
  asio::io_context own_loop_{1};
  asio::io_context& loop_;
  asio::posix::stream_descriptor signals_;  // a copy
  ShimLink shim_;
  asio::steady_timer tick_;
  MainStore store_;

  MachineCard card_;
  std::optional<Machine> machine_;  // once the store is reached
  std::optional<Leader> leader_;    // on machine 0
  int generation_ = 0;
  bool is_busy_ = false;  // workers run here
  bool begins_again_ = false;
  bool is_leaving_ = false;
  bool is_finishing_ = false;
  bool is_suspending_ = false;
  bool has_said_waiting_ = false;  // for machine 0
  bool has_said_missing_ = false;  // which machines are
  bool has_told_ = false;          // the verdict
  bool has_ctrl_c_ = false;        // at the terminal
  int num_signals_ = 0;
  int stop_signal_ = SIGTERM;

  TimePoint began_at_{};
  TimePoint generation_began_at_{};
  TimePoint last_answer_{};
  TimePoint ticked_at_{};
  std::optional<Error> error_;
  std::optional<Error> lost_shim_;
  std::optional<supervisor::WorkerExit> failed_here_;  // the first one of this generation
  std::optional<supervisor::JobOutcome> outcome_;
};

}  // namespace

Result<MachinesEnding> launch_machines(MachinesLaunchOptions options, NoticeQueue& notices) {
  const auto signals = TakenSignals::take();
  if (!signals) return signals.error();
  ::signal(SIGPIPE, SIG_IGN);
  return MachinesLaunch(std::move(options), notices, *signals).run();
}

}  // namespace accel::launcher
