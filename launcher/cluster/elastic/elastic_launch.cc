// accel-launch over several nodes.
//
// Each node runs the same command. One of them hosts the coordinator beside its own part of the job: whose address the
// endpoint is, or, inside SLURM, the step's first (where a batch script starts the nodes: slurm_launch.h). All of them,
// that one too, are nodes with a session of their own. The coordinator lives as long as its
// launcher: when that node goes, the job goes with it, after a grace, and every launcher says so (docs/internals/rendezvous.md).
// Where etcd says who hosts, the others meet again instead, under another one of them.
//
//   joining --Welcome--> in the job --job ended--> closing --shim ended, session closed--> ended
//      |                    |  '--SIGINT, SIGTERM: leave, the others go on without us--^
//      '--join limit--------'--no coordinator for longer than the grace--> ended with an error
//                           '--the same, with etcd--> meeting --Welcome by another one, or the same--> in the job
//                                                        '--join limit, no restart left--> ended with an error

#include "launcher/cluster/elastic/elastic_launch.h"

#include <csignal>
#include <cstdio>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/signal_set.hpp>
#include <boost/asio/steady_timer.hpp>

#include "agent/calls/client_channel.h"
#include "agent/parts/node_member.h"
#include "agent/shims/worker_end.h"
#include "agent/tls/revocation_list.h"
#include "agent/tls/tls_credentials.h"
#include "launcher/cluster/agents/followed_job.h"
#include "launcher/cluster/elastic/elastic_faults.h"
#include "launcher/cluster/hosting/host_search.h"
#include "launcher/cluster/hosting/hosted_coordinator.h"
#include "launcher/cluster/meeting/endpoint.h"
#include "launcher/cluster/meeting/endpoint_probe.h"
#include "launcher/cluster/meeting/launch_description.h"
#include "launcher/cluster/meeting/meeting_place.h"
#include "launcher/cluster/slurm/slurm_launch.h"
#include "launcher/flags/flag_spelling.h"
#include "launcher/run/interrupt_end.h"
#include "launcher/run/notice_line.h"
#include "launcher/start/elastic/elastic_settings.h"
#include "launcher/text/program.h"
#include "runtime/printable.h"
#include "runtime/supervisor/metrics/ledger.h"
#include "runtime/supervisor/shim/job_record.h"

namespace accel::cluster {
namespace {

namespace asio = boost::asio;
using agent::NoticeKind;

// How long we try to come back, without workers, while its host does not even refuse us: the network may heal.
constexpr std::chrono::seconds kPartitionGrace{60};
// With etcd: a connection that breaks may come back so soon; then it is asked who hosts now.
constexpr std::chrono::seconds kBlip{1};
// An attempt to connect to a host that swallows packets makes room for the next one.
constexpr std::chrono::milliseconds kHostConnectLimit{3'000};

class ElasticLaunch {
 public:
  explicit ElasticLaunch(launcher::ElasticRequest request)
      : request_(std::move(request)),
        program_(launcher::name_of(request_.settings.program)),
        signals_(loop_),
        search_(loop_,
                request_.settings,
                {.listen = [this](const MeetingPlace& place,
                                  const std::string& at) { return hosting_.listen(place, at); },
                 .on_found =
                     [this](Result<MeetingPlace> found, std::unique_ptr<CoordinatorSeat> seat) {
                       if (!is_ending_) return on_met(std::move(found), std::move(seat));
                       if (found) search_.drop(*std::move(found));
                       hosting_.retire(std::move(seat));
                     },
                 .retire =
                     [this](std::unique_ptr<CoordinatorSeat> seat) {
                       hosting_.retire(std::move(seat));
                     },
                 .say = [this](const std::string& line) { say(line); }}),
        patience_(loop_),
        revocations_(loop_),
        probe_(loop_),
        hosting_(loop_,
                 request_,
                 place_,
                 {.on_end = [this](Error error) { end_with(std::move(error)); },
                  .is_ending = [this] { return is_ending_; },
                  .say = [this](const std::string& line) { say(line); }}) {}

  Result<int> run() {
    for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGUSR1}) signals_.add(signal);
    wait_for_signal();
    meet_until_ = clock_.now() + std::chrono::seconds(request_.settings.join_timeout_seconds);
    if (is_by_etcd()) {
      search_.begin(meet_until_);
    } else {
      // Names, shared folders and addresses may hang: the loop goes on beside them.
      finder_ = std::jthread([this](const std::stop_token& stop) {
        auto found =
            std::make_shared<Result<MeetingPlace>>(find_meeting_place(request_.settings, stop));
        asio::post(loop_, [this, found] { on_place(std::move(*found)); });
      });
    }
    const auto work = asio::make_work_guard(loop_);
    loop_.run();
    if (member_) keep_failure();
    member_.reset();
    if (error_) return *error_;
    return status_;
  }

  // A Ctrl-C at the terminal of this machine ended it.
  [[nodiscard]] bool is_interrupted() const {
    return has_ctrl_c_ && !error_ && status_ == supervisor::exit_code_after(SIGINT);
  }

 private:
  void keep_failure() const {
    const auto& outcome = member_->workers().outcome();
    if (!outcome) return;
    if (const auto kept = keep_failure_of(*outcome, request_); !kept) say(kept.error().message());
  }

  [[nodiscard]] bool is_by_etcd() const { return !request_.settings.etcd.endpoint.empty(); }

  void on_place(Result<MeetingPlace> found) {
    if (is_ending_) return;
    if (!found) return fail(std::move(found).error());
    place_ = *std::move(found);
    if (auto hosted = hosting_.begin(known_epoch()); !hosted)
      return fail(std::move(hosted).error());
    if (auto joined = join(); !joined) return fail(std::move(joined).error());
  }

  void fail(Error error) {
    if (member_) return end_with(std::move(error));
    begin_to_end();
    error_ = std::move(error);
    quit();
  }

  // ---- who hosts, by etcd ----

  void on_met(Result<MeetingPlace> found, std::unique_ptr<CoordinatorSeat> seat) {
    patience_.cancel();
    hosting_.offer(std::move(seat));
    if (!member_) return on_place(std::move(found));
    if (!found) return fail(std::move(found).error());
    const bool is_same_host = found->host_id == place_.host_id;
    if (!is_same_host && !may_go_on()) return search_.drop(*std::move(found));
    if (!is_same_host) hosting_.step_down();
    // Our own coordinator, which this node has lost sight of, keeps its key and its seat.
    if (!hosting_.has_seat()) {
      search_.drop(std::exchange(place_, *std::move(found)));
      if (auto hosted = hosting_.begin(known_epoch()); !hosted)
        return fail(std::move(hosted).error());
    }
    endpoint_text_ = to_text(place_.endpoint);
    probe_.forget();
    is_welcome_ = false;
    member_->move_to(open_channel(endpoint_text_));
    wait_to_meet(kControlLossGrace);
  }

  // Of the coordinators that this node has heard of.
  [[nodiscard]] std::uint64_t known_epoch() const {
    const auto* job = member_ ? member_->membership() : nullptr;
    return job == nullptr ? 0 : job->assigned_epoch;
  }

  [[nodiscard]] bool have_all_ended_well() const {
    const auto* job = member_->membership();
    return job != nullptr && job->num_ranks > 0 && job->num_done >= job->num_ranks;
  }

  // A worker that is told to stop may save and end well, and has not done what it was for.
  void stop_workers() {
    if (!has_stopped_workers_) has_ended_well_ = have_all_ended_well();
    has_stopped_workers_ = true;
    member_->stop_workers(request_.spec.stop.grace);
  }

  // The job that another coordinator shall go on with: as far as this node knows.
  bool may_go_on() {
    const auto* job = member_->membership();
    if (job == nullptr) return true;
    if (has_ended_well_ || (!has_stopped_workers_ && have_all_ended_well())) {
      begin_to_end();
      say("the coordinator is gone, after every rank of this node had ended well");
      member_->finish();
      return false;
    }
    if (job->join.restarts <= request_.spec.restart.max_restarts) return true;
    end_with(no_restart_left(endpoint_text_, request_));
    return false;
  }

  void wait_to_meet(std::chrono::seconds pause) {
    patience_.expires_after(pause);
    patience_.async_wait([this](const boost::system::error_code& error) {
      if (!error && !is_ending_) meet_again();
    });
  }

  void meet_again() {
    if (clock_.now() >= meet_until_)
      return give_up_on_coordinator(std::chrono::seconds(request_.settings.join_timeout_seconds));
    // What ran under it has no future; while the host may come back, it has.
    if (member_ && is_gone()) stop_workers();
    patience_.cancel();
    search_.begin(meet_until_);
  }

  // ---- what it joins ----

  Result<void> join() {
    if (auto made = make_credentials(); !made) return made;
    watch_revocations();
    endpoint_text_ = to_text(place_.endpoint);
    agent::NodeMemberOptions options = describe_node(request_, place_);
    options.open_channel = [this](const std::string& leader) -> std::shared_ptr<grpc::Channel> {
      return may_follow(leader, request_.settings.insecure, place_.is_open) ? open_channel(leader)
                                                                            : nullptr;
    };
    member_ = std::make_unique<agent::NodeMember>(
        loop_,
        open_channel(endpoint_text_),
        std::move(options),
        agent::NodeMember::Handlers{
            .on_notice = [this](const agent::Notice& notice) { on_notice(notice); },
            .on_line = [this](const std::string& line) { say(line); },
            .on_connection = [this](bool is_connected,
                                    const std::string& why) { on_connection(is_connected, why); },
            .on_refused = [this](const std::string& why) { on_refused(why); },
            .on_preempted = [this](int rank) { follow_preemption(rank); },
            .on_finished = [this] { close(); }});
    if (is_by_etcd()) {
      wait_to_meet(kControlLossGrace);
    } else {
      wait_for_coordinator(std::chrono::seconds(request_.settings.join_timeout_seconds));
    }
    member_->start();
    return {};
  }

  Result<void> make_credentials() {
    auto credentials =
        agent::client_credentials(place_.tls, request_.settings.insecure, agent::Place::kJobHost);
    if (!credentials) return std::move(credentials).error();
    credentials_ = *std::move(credentials);
    return {};
  }

  void watch_revocations() {
    revocations_.expires_after(agent::kLookAtTlsFiles);
    revocations_.async_wait([this](const boost::system::error_code& error) {
      if (error || is_ending_) return;
      look_at_revocations();
      watch_revocations();
    });
  }

  void look_at_revocations() {
    const auto& revoked = place_.tls.revoked;
    if (!revoked) return;
    const auto look = revoked->look_again();
    say(look.warning);
    if (!look.has_changed) return;
    hosting_.end_revoked(*revoked);
    const std::string host = member_->server_certificate();
    if (host.empty() || !revoked->contains(host)) return;
    say("leaves the coordinator at " + endpoint_text_ + ": its certificate was revoked");
    // With credentials of its own, a channel makes a connection of its own.
    if (auto made = make_credentials(); !made) return end_with(std::move(made).error());
    member_->move_to(open_channel(endpoint_text_));
  }

  [[nodiscard]] std::shared_ptr<grpc::Channel> open_channel(const std::string& address) const {
    return grpc::CreateCustomChannel(
        address, credentials_, agent::client_channel_arguments(kHostConnectLimit));
  }

  void say(const std::string& line) const {
    if (!request_.settings.quiet) launcher::tell(program_, line);
  }

  // ---- what happens ----

  void on_connection(bool is_connected, const std::string& why) {
    if (!why.empty()) last_trouble_ = printable(why);
    if (is_connected) {
      was_welcome_ = is_welcome_ = true;
      has_stopped_workers_ = has_ended_well_ = false;
      last_trouble_.clear();
      probe_.forget();
      patience_.cancel();
      search_.stop();
      return;
    }
    if (is_ending_) return;
    probe_.ask(place_.endpoint);
    if (is_welcome_) {
      has_run_ = has_run_ || !member_->workers().pids().empty();
      say("the coordinator at " + endpoint_text_ + " is gone: " + why);
      may_go_on_elsewhere(request_.settings) ? lose_host()
                                             : wait_for_coordinator(kControlLossGrace);
    }
    is_welcome_ = false;
  }

  void lose_host() {
    meet_until_ = clock_.now() + std::chrono::seconds(request_.settings.join_timeout_seconds);
    has_said_goodbye() ? meet_again() : wait_to_meet(kBlip);
  }

  // One that believed us before is not the one that refuses us now: its launcher is gone, and another one of a job that
  // begins anew has the address. By etcd it may be that of another job, on a port that ours had: we meet elsewhere.
  void on_refused(const std::string& why) {
    if (was_welcome_ && may_go_on_elsewhere(request_.settings)) return;
    if (!has_run_) return end_with(stranger(why, place_.is_open, request_));
    end_with(Error(ErrorCode::kCoordinatorLost,
                   "another coordinator has the endpoint " + endpoint_text_ + " now"));
  }

  [[nodiscard]] bool has_said_goodbye() const { return last_trouble_ == agent::kCoordinatorEnds; }
  [[nodiscard]] bool is_gone() const {
    return was_welcome_ && (probe_.is_refused() || has_said_goodbye());
  }

  void wait_for_coordinator(std::chrono::seconds limit) {
    patience_.expires_after(limit);
    patience_.async_wait([this, limit](const boost::system::error_code& error) {
      if (error || is_ending_) return;
      if (was_welcome_ && limit < kPartitionGrace && !probe_.is_refused()) {
        patience_.expires_after(kPartitionGrace - limit);
        return patience_.async_wait([this](const boost::system::error_code& cancelled) {
          if (!cancelled) give_up_on_coordinator(kPartitionGrace);
        });
      }
      give_up_on_coordinator(limit);
    });
  }

  void give_up_on_coordinator(std::chrono::seconds limit) {
    if (is_ending_) return;
    end_with(unanswered(endpoint_text_, was_welcome_, limit));
  }

  void on_notice(const agent::Notice& notice) {
    if (notice.kind == NoticeKind::kParked || notice.kind == NoticeKind::kPreempt)
      return say(notice.text);
    if (is_ending_) return;
    begin_to_end();
    const auto& outcome = member_->workers().outcome();
    if (notice.kind != NoticeKind::kSucceeded) {
      status_ = status_of(notice.kind, outcome, stop_signal_);
      say("the job " + std::string(notice.kind == NoticeKind::kFailed ? "failed" : "was stopped") +
          ": " + notice.text);
      if (outcome) std::fputs(agent::describe_outcome(*outcome).c_str(), stderr);
    }
    tell_ledger();
    member_->finish();
  }

  // Where the job's time went; the coordinator knows, and it is here or with another launcher.
  void tell_ledger() const {
    const auto* job = hosting_.job();
    if (job == nullptr) return;
    say("time of the job: " +
        supervisor::describe(supervisor::settled(job->ledger, SteadyClock().now())));
  }

  void end_with(Error error) {
    if (is_ending_) return;
    begin_to_end();
    if (!last_trouble_.empty()) error.with_detail("last", last_trouble_);
    error_ = std::move(error);
    if (place_.seat) place_.seat->give_up();
    member_->leave("gives up", request_.spec.stop.grace);
  }

  void wait_for_signal() {
    signals_.async_wait([this](const boost::system::error_code& error, int signal) {
      if (error) return;
      has_ctrl_c_ |= signal == SIGINT && launcher::is_in_foreground();
      // Inside SLURM a signal is for the whole step: the host stops the job on every node.
      const bool stops_all =
          request_.settings.meeting == launcher::Meeting::kHostNode && hosting_.job() != nullptr;
      if (num_signals_++ == 0 && !is_ending_ && stops_all) {
        stop_signal_ = signal;
        hosting_.stop_job(granted(signal));
      } else if (num_signals_ == 1 && !is_ending_) {
        leave_job("stopped by a signal", signal);
      } else if (num_signals_ == 1 && is_preempted_) {
        // The notice itself: a rank was faster than we.
      } else if (member_) {
        member_->kill();
      }
      wait_for_signal();
    });
  }

  void follow_preemption(int rank) {
    if (is_ending_) return;
    is_preempted_ = true;
    leave_job("rank " + std::to_string(rank) + " has saved for its preemption", SIGTERM);
  }

  void leave_job(const std::string& why, int signal) {
    begin_to_end();
    is_leaving_ = true;
    status_ = supervisor::exit_code_after(signal);
    if (place_.seat) place_.seat->give_up();  // who comes now shall not join a host that goes
    member_ ? member_->leave(why, granted(signal)) : quit();
  }

  supervisor::Milliseconds granted(int signal) const {
    return launcher::granted_grace(
        request_.spec.stop.grace, signal, request_.settings.allocation_end);
  }

  // ---- the end ----

  void begin_to_end() {
    is_ending_ = true;
    patience_.cancel();
    search_.stop();
  }

  void close() {
    if (is_closing_) return;
    is_closing_ = true;
    // It went on request, and its ranks have saved before: the job may be queued again.
    const auto& outcome = member_->workers().outcome();
    if (is_leaving_ && outcome && outcome->has_saved) status_ = outcome->exit_code;
    member_->close([this] { quit(); });
  }

  // Coordinators that nodes may have sessions with need the loop until they have ended.
  void quit() {
    hosting_.close([this] {
      signals_.cancel();
      loop_.stop();
    });
  }

  launcher::ElasticRequest request_;
  const std::string program_;
  asio::io_context loop_{1};
  asio::signal_set signals_;
  HostSearch search_;  // by etcd
  asio::steady_timer patience_;
  asio::steady_timer revocations_;
  // Whether the launcher that was the coordinator has ended: its host is there, and nobody listens. A connection that is
  // reset says less.
  EndpointProbe probe_;
  SteadyClock clock_;
  MeetingPlace place_;
  TimePoint meet_until_{};  // by etcd
  std::string endpoint_text_;
  std::shared_ptr<grpc::ChannelCredentials> credentials_;
  HostedCoordinator hosting_;
  std::unique_ptr<agent::NodeMember> member_;
  std::jthread finder_;
  int num_signals_ = 0;
  int stop_signal_ = SIGTERM;  // what a job that was stopped ends with
  int status_ = 0;
  std::optional<Error> error_;
  std::string last_trouble_;  // what the last connection ended with
  bool has_run_ = false;      // workers ran here under a coordinator that went
  bool was_welcome_ = false;
  bool is_welcome_ = false;
  bool is_ending_ = false;
  bool is_closing_ = false;
  bool is_leaving_ = false;           // by a signal, or by a preemption that only a worker heard of
  bool is_preempted_ = false;         // the latter
  bool has_stopped_workers_ = false;  // since their coordinator went
  bool has_ended_well_ = false;       // every rank of this node, before that
  bool has_ctrl_c_ = false;           // at the terminal of this machine
};

}  // namespace

int launch_elastic(const char* text) {
  ::signal(SIGPIPE, SIG_IGN);
  auto request = launcher::elastic_request_from_json(text);
  if (!request) return launcher::print_failure(std::string(launcher::name_of({})), request.error());
  if (request->settings.meeting == launcher::Meeting::kStarter)
    return start_slurm_nodes(*std::move(request));
  if (request->settings.meeting == launcher::Meeting::kAgent) return launch_by_agent(*request);
  const std::string program(launcher::name_of(request->settings.program));
  bool is_interrupted = false;
  const auto status = [&] {
    ElasticLaunch launch(*std::move(request));
    auto ended = launch.run();
    is_interrupted = launch.is_interrupted();
    return ended;
  }();
  if (is_interrupted) launcher::end_by_interrupt();  // runs no destructor
  return status ? *status : launcher::print_failure(program, status.error());
}

}  // namespace accel::cluster
