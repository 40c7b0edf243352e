// accel-launch over several nodes.
//
// Each node runs the same command. One of them hosts the coordinator beside its own part of the job: whose address the
// endpoint is, or, inside SLURM, the step's first (where a batch script starts the nodes: slurm_launch.h). All of them,
// that one too, are nodes with a session of their own. The coordinator lives as long as its
// launcher: when that node goes, the job goes with it, after a grace, and every launcher says so (docs/rendezvous.md).
//
//   joining --Welcome--> in the job --job ended--> closing --shim ended, session closed--> ended
//      |                    |  '--SIGINT, SIGTERM: leave, the others go on without us--^
//      '--join limit--------'--no coordinator for longer than the grace--> ended with an error

#include <csignal>
#include <cstdio>
#include <memory>
#include <string>
#include <thread>

#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/signal_set.hpp>
#include <boost/asio/steady_timer.hpp>
#include <unistd.h>

#include "agent/client_channel.h"
#include "agent/rendezvous/node_address.h"
#include "agent/rendezvous/node_member.h"
#include "agent/tls_credentials.h"
#include "agent/worker_end.h"
#include "launcher/cluster/coordinator_seat.h"
#include "launcher/cluster/endpoint.h"
#include "launcher/cluster/entry.h"
#include "launcher/cluster/launch_description.h"
#include "launcher/cluster/meeting_place.h"
#include "launcher/cluster/slurm_launch.h"
#include "launcher/elastic_settings.h"
#include "launcher/flag_spelling.h"
#include "launcher/program.h"
#include "launcher/static/etcd_meeting.h"
#include "runtime/printable.h"
#include "runtime/supervisor/job_record.h"

namespace accel::cluster {
namespace {

namespace asio = boost::asio;
using agent::NoticeKind;

// How long we try to come back, without workers, while its host does not even refuse us: the network may heal.
constexpr std::chrono::seconds kPartitionGrace{60};
// An attempt to connect to a host that swallows packets makes room for the next one.
constexpr std::chrono::milliseconds kConnectLimit{3'000};

int fail(const std::string& program, const Error& error) {
  std::fprintf(stderr, "%s\n", launcher::rendered(error, program).c_str());
  return error_info(error.code()).exit_status;
}

class ElasticLaunch {
 public:
  explicit ElasticLaunch(launcher::ElasticRequest request)
      : request_(std::move(request)),
        program_(launcher::name_of(request_.settings.program)),
        signals_(loop_),
        patience_(loop_),
        seat_watch_(loop_) {}

  Result<int> run() {
    for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGUSR1}) signals_.add(signal);
    wait_for_signal();
    // Names, shared folders and addresses may hang: the loop goes on beside them.
    finder_ = std::jthread([this](const std::stop_token& stop) {
      auto found = std::make_shared<Result<MeetingPlace>>(
          find_meeting_place(request_.settings, stop, [this](const std::string& line) {
            asio::post(loop_, [this, line] { say(line); });
          }));
      asio::post(loop_, [this, found] { on_place(std::move(*found)); });
    });
    const auto work = asio::make_work_guard(loop_);
    loop_.run();
    member_.reset();
    if (error_) return *error_;
    return status_;
  }

 private:
  void on_place(Result<MeetingPlace> found) {
    if (is_ending_) return;
    if (!found) return fail_early(std::move(found).error());
    place_ = *std::move(found);
    if (auto hosted = host_coordinator(); !hosted) return fail_early(std::move(hosted).error());
    if (auto joined = join(); !joined) return fail_early(std::move(joined).error());
  }

  void fail_early(Error error) {
    is_ending_ = true;
    error_ = std::move(error);
    quit();
  }

  Result<void> host_coordinator() {
    if (!place_.listen) return {};
    SeatOptions options;
    options.listen = *place_.listen;
    options.tls = place_.tls;
    options.insecure = request_.settings.insecure;
    options.token_key = place_.token_key;
    options.on_report = [this](const agent::Report& report) { on_report(report); };
    options.on_line = [this](const std::string& line) { say(line); };
    auto seat = CoordinatorSeat::take(loop_, std::move(options));
    // Another launcher of this machine was quicker: it is the host. What etcd says has one writer.
    if (!seat && !place_.seat && place_.endpoint.port != 0 && !is_ours_and_free(place_.endpoint))
      return {};
    if (!seat) return std::move(seat).error();
    seat_ = *std::move(seat);
    if (place_.seat) watch_seat();
    if (place_.is_open && !place_.is_local)
      say("the nodes meet at " + *place_.listen +
          "; whoever reaches this port is trusted, as with torchrun");
    if (place_.endpoint.port != 0) return {};
    std::vector<std::string> endpoints;
    for (const std::string& host : own_addresses())
      endpoints.push_back(to_text(
          {.host = host, .port = static_cast<std::uint16_t>(seat_->port()), .is_loopback = false}));
    place_.endpoint = *agent::parse_tcp_address(endpoints.front());
    return place_.folder->publish(endpoints);
  }

  void on_report(const agent::Report& report) {
    say(describe_report(report));
    // Before the other nodes hear of it: the next run of this name may begin at once.
    const auto* job = hosted_job();
    if (job != nullptr && agent::is_terminal(job->phase) && place_.seat) place_.seat->give_up();
  }

  // Null: it is not here, or not begun.
  [[nodiscard]] const agent::Job* hosted_job() const {
    if (!seat_) return nullptr;
    const auto& jobs = seat_->host().state().jobs;
    const auto found = jobs.find(request_.settings.job);
    return found == jobs.end() ? nullptr : &found->second;
  }

  // A launcher that etcd did not hear from for too long has lost the seat. A job that runs goes on with the nodes it has.
  void watch_seat() {
    constexpr std::chrono::seconds kLookEvery{1};
    seat_watch_.expires_after(kLookEvery);
    seat_watch_.async_wait([this](const boost::system::error_code& error) {
      if (error || is_ending_) return;
      const auto lost = launcher::find_lost_seat(*place_.seat);
      if (!lost) return watch_seat();
      const auto* job = hosted_job();
      if (job == nullptr || !job->was_started) return end_with(*lost);
      say(lost->message() + ": nodes that come from now on join there");
    });
  }

  Result<void> join() {
    auto credentials = agent::client_credentials(place_.tls, request_.settings.insecure);
    if (!credentials) return std::move(credentials).error();
    const auto open_channel = [credentials = *credentials](const std::string& address) {
      return grpc::CreateCustomChannel(
          address, credentials, agent::client_channel_arguments(kConnectLimit));
    };
    endpoint_text_ = to_text(place_.endpoint);
    agent::NodeMemberOptions options;
    options.open_channel =
        [this, open_channel](const std::string& leader) -> std::shared_ptr<grpc::Channel> {
      return may_follow(leader, request_.settings.insecure, place_.is_open) ? open_channel(leader)
                                                                            : nullptr;
    };
    const std::string own_host = agent::host_name();
    options.node.node_id = request_.settings.node_id.empty()
                               ? own_host + "-" + std::to_string(::getpid())
                               : request_.settings.node_id;
    options.node.boot_id = agent::boot_id();
    options.node.hostname = own_host;
    const std::string& chosen = request_.settings.etcd.own_address;
    options.node.addresses = {chosen.empty() ? own_address_towards(place_.endpoint, place_.is_local)
                                             : chosen};
    options.node.slots = static_cast<int>(request_.spec.workers.size());
    options.token_key = place_.token_key;
    options.preferred_index = request_.settings.node_index;
    options.job = describe_launch(request_);
    options.workers = {.job_uuid = request_.settings.job,
                       .spec = request_.spec,
                       .shim = {},
                       .address = options.node.addresses[0]};
    options.workers.spec.node_id = options.node.node_id;
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
            .on_finished = [this] { close(); }});
    wait_for_coordinator(std::chrono::seconds(request_.settings.join_timeout_seconds));
    member_->start();
    return {};
  }

  void say(const std::string& line) const {
    if (!request_.settings.quiet && !line.empty())
      std::fprintf(stderr, "%s: %s\n", program_.c_str(), printable(line).c_str());
  }

  // ---- what happens ----

  void on_connection(bool is_connected, const std::string& why) {
    if (!why.empty()) last_trouble_ = printable(why);
    if (is_connected) {
      was_welcome_ = is_welcome_ = true;
      patience_.cancel();
      return;
    }
    if (is_ending_) return;
    if (is_welcome_) {
      has_run_ = has_run_ || !member_->workers().pids().empty();
      say("the coordinator at " + endpoint_text_ + " is gone: " + why);
      wait_for_coordinator(kControlLossGrace);
    }
    is_welcome_ = false;
  }

  // One that believed us before is not the one that refuses us now: its launcher is gone, and another one of a job that
  // begins anew has the address.
  void on_refused(const std::string& why) {
    if (!has_run_ && place_.is_open) {
      const launcher::Program program = request_.settings.program;
      return end_with(Error(ErrorCode::kAuthentication,
                            why,
                            "give every node the same " + launcher::spelled("rdzv_id", program) +
                                "; a job with a token needs " +
                                launcher::spelled("rdzv_token_file", program) + " here too"));
    }
    if (!has_run_) return end_with(Error(ErrorCode::kAuthentication, why));
    end_with(Error(ErrorCode::kCoordinatorLost,
                   "another coordinator has the endpoint " + endpoint_text_ + " now"));
  }

  // The host is there and nobody listens: the launcher that was the coordinator has ended.
  [[nodiscard]] bool is_refused() const {
    return last_trouble_.find("refused") != std::string::npos ||
           last_trouble_.find("reset by peer") != std::string::npos;
  }

  void wait_for_coordinator(std::chrono::seconds limit) {
    patience_.expires_after(limit);
    patience_.async_wait([this, limit](const boost::system::error_code& error) {
      if (error || is_ending_) return;
      if (was_welcome_ && limit < kPartitionGrace && !is_refused()) {
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
    const std::string where = "the coordinator at " + endpoint_text_;
    if (was_welcome_) {
      end_with(Error(ErrorCode::kCoordinatorLost,
                     where + " did not answer for " + std::to_string(limit.count()) + " s"));
    } else {
      end_with(
          Error(ErrorCode::kRendezvousTimeout,
                where + " could not be reached within " + std::to_string(limit.count()) + " s"));
    }
  }

  void on_notice(const agent::Notice& notice) {
    if (notice.kind == NoticeKind::kParked || notice.kind == NoticeKind::kPreempt)
      return say(notice.text);
    if (is_ending_) return;
    is_ending_ = true;
    const auto& outcome = member_->workers().outcome();
    if (notice.kind != NoticeKind::kSucceeded) {
      status_ = status_of(notice.kind, outcome);
      say("the job " + std::string(notice.kind == NoticeKind::kFailed ? "failed" : "was stopped") +
          ": " + notice.text);
      if (outcome) std::fputs(agent::describe_outcome(*outcome).c_str(), stderr);
    }
    tell_ledger();
    member_->finish();
  }

  // Where the job's time went; the coordinator knows, and it is here or with another launcher.
  void tell_ledger() const {
    const auto* job = hosted_job();
    if (job == nullptr) return;
    say("time of the job: " + agent::describe(agent::settled(job->ledger, SteadyClock().now())));
  }

  // Of a job that did not succeed: our own worker's code; 85 when it was stopped and all have saved.
  int status_of(NoticeKind kind, const std::optional<supervisor::JobOutcome>& outcome) const {
    if (kind == NoticeKind::kCancelled)
      return outcome && outcome->has_saved ? outcome->exit_code
                                           : supervisor::exit_code_after(stop_signal_);
    return outcome && outcome->first_failure && outcome->exit_code != 0 ? outcome->exit_code : 1;
  }

  void end_with(Error error) {
    if (is_ending_) return;
    is_ending_ = true;
    if (!last_trouble_.empty()) error.with_detail("last", last_trouble_);
    error_ = std::move(error);
    member_->leave("gives up", request_.spec.stop.grace);
  }

  void wait_for_signal() {
    signals_.async_wait([this](const boost::system::error_code& error, int signal) {
      if (error) return;
      // Inside SLURM a signal is for the whole step: the host stops the job on every node.
      const bool stops_all = request_.settings.meeting == launcher::Meeting::kHostNode && seat_ &&
                             seat_->host().state().jobs.contains(request_.settings.job);
      if (num_signals_++ == 0 && !is_ending_ && stops_all) {
        stop_signal_ = signal;
        seat_->host().handle(
            agent::StopJob{.job_uuid = request_.settings.job, .grace = granted(signal)});
      } else if (num_signals_ == 1 && !is_ending_) {
        is_ending_ = true;
        is_leaving_ = true;
        status_ = supervisor::exit_code_after(signal);
        if (place_.seat) place_.seat->give_up();  // who comes now shall not join a host that goes
        member_ ? member_->leave("stopped by a signal", granted(signal)) : quit();
      } else if (member_) {
        member_->kill();
      }
      wait_for_signal();
    });
  }

  supervisor::Milliseconds granted(int signal) const {
    return launcher::granted_grace(request_.spec.stop.grace,
                                   signal,
                                   request_.settings.allocation_end,
                                   std::chrono::system_clock::now());
  }

  // ---- the end ----

  void close() {
    if (is_closing_) return;
    is_closing_ = true;
    patience_.cancel();
    seat_watch_.cancel();
    // It went on request, and its ranks have saved before: the job may be queued again.
    const auto& outcome = member_->workers().outcome();
    if (is_leaving_ && outcome && outcome->has_saved) status_ = outcome->exit_code;
    member_->close([this] { seat_ ? seat_->close([this] { quit(); }) : quit(); });
  }

  void quit() {
    signals_.cancel();
    loop_.stop();
  }

  launcher::ElasticRequest request_;
  const std::string program_;
  asio::io_context loop_{1};
  asio::signal_set signals_;
  asio::steady_timer patience_;
  asio::steady_timer seat_watch_;
  MeetingPlace place_;
  std::string endpoint_text_;
  std::unique_ptr<CoordinatorSeat> seat_;
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
  bool is_leaving_ = false;  // by a signal
};

}  // namespace

int launch_elastic(const char* text) {
  ::signal(SIGPIPE, SIG_IGN);
  auto request = launcher::elastic_request_from_json(text);
  if (!request) return fail(std::string(launcher::name_of({})), request.error());
  if (request->settings.meeting == launcher::Meeting::kStarter)
    return start_slurm_nodes(*std::move(request));
  if (request->settings.meeting == launcher::Meeting::kAgent) return launch_by_agent(*request);
  const std::string program(launcher::name_of(request->settings.program));
  ElasticLaunch launch(*std::move(request));
  const auto status = launch.run();
  return status ? *status : fail(program, status.error());
}

}  // namespace accel::cluster
