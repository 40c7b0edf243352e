// Supervisor::Impl: what the supervisor knows and does; private to supervisor.cc.
#pragma once

#include <functional>
#include <optional>
#include <vector>

#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <unistd.h>

#include "runtime/supervisor/kernel/detached_call.h"
#include "runtime/supervisor/logs/drain_watch.h"
#include "runtime/supervisor/protocol/lease.h"
#include "runtime/supervisor/shim/job_record.h"
#include "runtime/supervisor/shim/supervisor.h"
#include "runtime/supervisor/shim/worker_services.h"
#include "runtime/supervisor/spawn/job_cgroup.h"
#include "runtime/supervisor/spawn/oom_counters.h"
#include "runtime/supervisor/spawn/preflight.h"
#include "runtime/supervisor/spawn/worker_group.h"
#include "runtime/supervisor/stop/leftovers.h"
#include "runtime/supervisor/stop/orphan_sweep.h"
#include "runtime/supervisor/stop/restart_policy.h"
#include "runtime/supervisor/stop/stop_sequence.h"
#include "runtime/supervisor/stop/stop_wait.h"
#include "runtime/supervisor/watch/hang_clock.h"

namespace accel::supervisor {

class Supervisor::Impl {
 public:
  Impl(boost::asio::io_context& context,
       SupervisorOptions options,
       std::function<void(const HostEvent&)> send,
       std::function<void()> done)
      : spec_(std::move(options.spec)),
        context_(context),
        system_(*options.system),
        error_file_reader_(std::move(options.error_files)),
        forks_(std::move(options.forks)),
        send_(std::move(send)),
        done_(std::move(done)),
        timer_(context),
        group_(system_, forks_.get()),
        scope_{.ancestor = ::getpid(),
               .job_id = spec_.job_id,
               .node_id = spec_.node_id,
               .instance = spec_.instance,
               .started_at = own_start_time(system_),
               .spared = forks_ ? forks_->pid() : -1},
        owner_group_(options.owner_group),
        services_(context,
                  spec_,
                  {.owner = options.owner,
                   .owner_group = options.owner_group,
                   .open_files = options.worker_open_files,
                   .notice = [this](const std::string& text) { tell(text); },
                   .commit =
                       [this](const CheckpointCommit& commit) {
                         record_.set_checkpoint(
                             {commit.step, commit.generation, commit.path, commit.token});
                       }}),
        hang_timer_(context),
        hang_clock_(spec_.hang),
        lease_timer_(context),
        leftover_timer_(context),
        leftovers_(system_, scope_, spec_.stop) {}

  void start();
  void handle(const HostRequest& request);
  void owner_lost(const std::string& why);
  void children_changed();
  [[nodiscard]] Snapshot snapshot() const;

 private:
  enum class State {
    kIdle,
    kChecking,
    kParked,
    kPrepared,
    kRunning,
    kStopping,
    kLingering,
    kSweeping,
    kDraining,
    kWaiting,
    kClosing,
    kFinished
  };
  struct ErrorFile {
    int local_rank = 0;
    std::string content;
  };

  // generations that the owner drives: owner_generations.cc
  void open_store(const OpenStore& wanted);
  void prepare(const PrepareGeneration& wanted);
  void bind(const PrepareGeneration& wanted);
  [[nodiscard]] Result<void> check(const PrepareGeneration& wanted) const;
  void start_prepared(const StartGeneration& wanted);
  void stop_generation(const StopGeneration& wanted);
  void finish_job();
  void end_generation();
  [[nodiscard]] bool is_owner_driven() const { return spec_.control == GenerationControl::kOwner; }
  [[nodiscard]] bool has_successor() const;

  // the lease of a generation that the owner drives: lease_watch.cc
  void begin_lease(BootTime until);
  void renew_lease(const RenewLease& renewal);
  void watch_lease();
  void enforce_lease();
  void end_lease();

  // the checks before a generation: preflight_watch.cc
  void begin_checks(std::function<void(const Result<void>&)> then);
  void sweep_after_checks();
  void end_checks(Result<void> result);
  void drop_checks();

  // running
  void start_generation();
  void open_generation();
  void forget_generation();
  void run_generation();
  void start_workers();
  [[nodiscard]] Result<void> make_cgroup();
  void kill_cgroup(const Worker& worker);
  [[nodiscard]] bool ran_out_of_memory(const Worker& worker);
  [[nodiscard]] std::optional<WorkerExit> start_worker(const WorkerSpec& worker);
  void worker_ended(Worker& worker, bool succeeded, TimePoint seen_at);
  const WorkerExit& record(WorkerExit exit, TimePoint seen_at);
  void await_tail(int local_rank);

  // reports, hangs and stopped workers: hang_watch.cc
  void begin_hang_watch();
  void look_at_reports();
  void judge_reports();
  void begin_hang(const Hang& hang);
  void write_all_stacks();
  void stop_after_hang();
  void note_stopped(Worker& worker, bool is_stopped, bool is_traced);

  // stopping
  void stop_after_failure();
  void follow_preemption();
  void stop_for_owner(const Stop& stop);
  [[nodiscard]] int first_signal(const Stop& stop) const;
  void begin_stop(StopStyle style, int signal, const StopPolicy& policy);
  void run_stop_sequence();
  void apply(const StopAction& action);
  [[nodiscard]] bool is_target(const Worker& worker, StopTarget target) const;
  void give_up_on_workers();
  [[nodiscard]] bool is_stop_complete() const;
  [[nodiscard]] bool awaits_descendants() const;
  void ask_descendants();
  [[nodiscard]] bool was_signalled(const ProcessEntry& descendant) const;
  void tell_of_wait(Duration patience);
  [[nodiscard]] StopWait describe_wait() const;
  [[nodiscard]] std::vector<Leftover> name_descendants() const;

  // lingering
  void begin_linger();
  void end_linger();
  void watch_leftovers();

  // sweeping and after
  void begin_sweep();
  [[nodiscard]] std::optional<RestartDecision> plan_next();
  void tell_why_it_ends();
  void run_sweep();
  void give_up_on_strays();
  void conclude();
  void refuse(const Error& error);
  void read_error_files();
  void take_error_files(const std::vector<ErrorFile>& files);
  void leave_error_files();
  void finish();
  void close_with(std::function<void()> last_word);
  void watch_drain();
  void tell(const std::string& text);

  void dump_stacks();
  void suspend();
  void resume();
  void signal_all(int signal);
  void set_timer(TimePoint when, void (Impl::*then)());
  void cancel_timer() { timer_.cancel(); }
  // Of the job: not the fork server.
  [[nodiscard]] bool has_children() const {
    return forks_ ? has_children_besides(system_, forks_->pid()) : supervisor::has_children();
  }
  [[nodiscard]] bool is_failed() const { return record_.first_failure().has_value(); }

  JobSpec spec_;  // ranks, world and store change with the generations of the owner, nothing else
  boost::asio::io_context& context_;
  System& system_;
  ErrorFileReader error_file_reader_;
  std::shared_ptr<ForkServer> forks_;
  SteadyClock clock_;
  std::function<void(const HostEvent&)> send_;
  std::function<void()> done_;
  boost::asio::steady_timer timer_;

  State state_ = State::kIdle;
  WorkerGroup group_;
  std::optional<JobCgroup> cgroup_;  // where the machine lets us have one
  SweepScope scope_;
  pid_t owner_group_;
  std::optional<StopSequence> stop_;
  std::optional<OrphanSweep> sweep_;
  std::optional<Stop> owner_stop_;  // what the owner asked for first
  int generation_ = 0;
  int num_ended_ = 0;                // generations up to this number are over
  std::optional<int> opened_store_;  // of this generation, by open_store()
  bool is_stop_asked_ = false;       // of the whole job; else owner_stop_ is of a generation
  bool is_job_ending_ = false;       // no generation follows, whatever the owner drives
  bool expects_successor_ = false;   // while sweeping: only what a successor needs is swept
  std::uint64_t stale_requests_ = 0;
  RestartHistory history_;
  std::optional<RestartDecision> next_;                // while sweeping
  RestartVerdict verdict_ = RestartVerdict::kRestart;  // of the last failure
  TimePoint started_at_{};
  std::optional<std::uint64_t> oom_kills_before_;
  OomCounters oom_counters_;
  bool is_unkillable_ = false;
  bool is_linger_over_ = false;
  bool has_asked_descendants_ = false;  // while stopping
  bool is_in_hurry_ = false;            // the owner asked twice, or for the end now

  std::optional<Preflight> preflight_;  // while a check runs
  Result<void> check_result_;           // while what the checks left is swept
  std::function<void(const Result<void>&)> after_checks_;

  std::optional<DetachedCall<std::vector<ErrorFile>>> error_files_;  // while draining
  bool has_error_files_ = false;  // of the current generation: read, or given up

  std::optional<DrainWatch> drain_;  // while closing
  std::function<void()> last_word_;

  int tails_awaited_ = 0;  // of the current generation

  JobRecord record_;
  WorkerServices services_;
  boost::asio::steady_timer hang_timer_;
  HangClock hang_clock_;
  std::optional<Hang> hang_;     // of the current generation
  std::string call_difference_;  // at that hang; empty: none was seen
  bool is_suspended_ = false;
  boost::asio::steady_timer lease_timer_;
  LeaseClock lease_;
  boost::asio::steady_timer leftover_timer_;
  Leftovers leftovers_;
};

}  // namespace accel::supervisor
