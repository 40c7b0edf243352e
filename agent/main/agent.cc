#include "agent/main/agent.h"

#include <csignal>
#include <filesystem>
#include <memory>
#include <optional>
#include <thread>

#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/signal_set.hpp>
#include <boost/asio/steady_timer.hpp>
#include <unistd.h>

#include "agent/access/refusal_log.h"
#include "agent/access/ticket_server.h"
#include "agent/calls/grpc_server.h"
#include "agent/cluster/cluster_part.h"
#include "agent/control/control_service.h"
#include "agent/files/drain_mark.h"
#include "agent/files/event_file.h"
#include "agent/files/file_readers.h"
#include "agent/files/state_folder.h"
#include "agent/jobs/event_diary.h"
#include "agent/jobs/job_runner.h"
#include "agent/jobs/job_state.h"
#include "agent/main/agent_dashboard.h"
#include "agent/main/agent_metrics.h"
#include "agent/main/dashboard_actions.h"
#include "agent/main/health_watch.h"
#include "agent/main/job_curves.h"
#include "agent/main/service_manager.h"
#include "agent/main/timed_answer.h"
#include "agent/shims/job_cgroups.h"
#include "agent/tls/certificate_expiry.h"
#include "agent/tls/revocation_list.h"
#include "agent/tls/tls_credentials.h"
#include "runtime/printable.h"
#include "runtime/supervisor/dashboard/dashboard_url.h"
#include "runtime/supervisor/metrics/metrics_server.h"
#include "runtime/supervisor/owner/worker_host.h"
#include "runtime/text/random_digits.h"
#include "runtime/wall_clock.h"

namespace accel::agent {
namespace {

namespace asio = boost::asio;
using supervisor::DashboardDeed;
using supervisor::StopMode;

constexpr std::chrono::minutes kLookAtCertificates{1};
constexpr std::chrono::seconds kMeasureLag{1};
constexpr std::chrono::seconds kLookPatience{1};  // for shims, when metrics are asked for
// Of the dashboard: its addresses below the runtime folder, and the hexadecimal digits of a token, 192 random bits.
constexpr const char* kViewersFile = "/dashboard.url";
constexpr const char* kOperatorsFile = "/dashboard-operator.url";
constexpr std::size_t kTokenDigits = 48;

class Agent {
 public:
  Agent(const AgentOptions& options, AgentConfig config)
      : options_(options),
        config_(std::move(config)),
        signals_(loop_),
        grace_(loop_),
        certificates_(loop_),
        revocations_(loop_),
        lag_(loop_) {}

  Result<void> start() {
    auto lock = take_state_folder(config_);
    if (!lock) return std::move(lock).error();
    lock_ = *std::move(lock);
    if (auto opened = open_events(); !opened) return opened;
    cgroups_ = JobCgroups::below_own(real_system(), config_.state_dir, config_.job_pids);
    JobRunnerOptions jobs = {.log_dir = config_.log_dir,
                             .changes_user = ::geteuid() == 0,
                             .max_jobs = config_.max_jobs,
                             .max_jobs_each = config_.max_jobs_each,
                             .keep_finished = config_.keep_finished,
                             .shim_path = {},
                             .node_id = config_.node_id,
                             .state_dir = config_.state_dir,
                             .runtime_dir = config_.runtime_dir,
                             .hold = config_.hold,
                             .adopts_damaged = config_.adopts_damaged,
                             .log = [this](const auto& line) { options_.log(printable(line)); },
                             .cgroups = &*cgroups_,
                             .totals = &metrics_.durations,
                             .on_heard =
                                 [this](const auto& job, const auto& event) {
                                   if (events_) events_->heard(subject_of(job), event);
                                 }};
    jobs_ = std::make_unique<JobRunner>(
        loop_, std::move(jobs), [this](const v1::Job& job) { on_change(job); });
    if (auto made = make_cluster_part(); !made) return made;
    control_ = std::make_unique<ControlService>(
        ControlService::Parts{.loop = loop_,
                              .config = config_,
                              .tickets = tickets_,
                              .jobs = *jobs_,
                              .users = users_,
                              .files = files_,
                              .audit = [this](const auto& line) { audit(line); },
                              .audit_refusal = [this](const auto& line) { audit_refusal(line); },
                              .agent_uid = ::geteuid(),
                              .cluster = cluster_ ? &cluster_->client() : nullptr,
                              .cluster_watch = cluster_ ? &cluster_->watch() : nullptr,
                              .leave_jobs =
                                  [this](const std::string& reason) {
                                    if (cluster_) cluster_->leave_jobs(reason);
                                  },
                              .drain_mark = &drain_mark_});
    stay_drained();
    if (auto recovered = jobs_->recover(); !recovered) return recovered;
    if (auto opened = open_sockets(); !opened) return opened;
    if (auto serving = serve_metrics(); !serving) return serving;
    if (auto serving = serve_dashboard(); !serving) return serving;
    if (cluster_) cluster_->start(server_->tcp_port());
    if (const int removed = cgroups_->remove_others(); removed > 0)
      options_.log("removed " + std::to_string(removed) + " cgroups of jobs that are gone");
    listen_for_signals();
    return {};
  }

  int run() {
    watch_certificates();
    watch_revocations();
    const std::string where =
        config_.runtime_dir + "/agent.sock" +
        (server_->tcp_port() != 0
             ? " and " + config_.listen + " (port " + std::to_string(server_->tcp_port()) + ")"
             : "");
    tell_connection_limit();
    tell_missing_rights();
    if (config_.job_pids > 0) tell_limit_that_cannot_hold();
    options_.log("node " + config_.node_id + " serves at " + where);
    manager_.ready("serving");
    watch_health();
    loop_.run();
    health_.reset();
    metrics_server_.reset();
    if (dashboard_) {
      for (const char* file : {kViewersFile, kOperatorsFile})
        ::unlink((config_.runtime_dir + file).c_str());
    }
    dashboard_.reset();
    if (closer_.joinable()) closer_.join();
    ::unlink((config_.runtime_dir + "/agent.sock").c_str());
    // Clients of a restarted agent wait in the queue of a socket that systemd keeps.
    const bool is_waited_at = are_tickets_kept_ && is_leaving_;
    if (!is_waited_at) ::unlink((config_.runtime_dir + "/tickets.sock").c_str());
    return 0;
  }

 private:
  // Without `coordinator` in the configuration there is none.
  Result<void> make_cluster_part() {
    if (config_.coordinator.empty()) return {};
    auto made = ClusterPart::make(ClusterPart::Parts{
        .loop = loop_,
        .config = config_,
        .users = users_,
        .files = files_,
        .jobs = *jobs_,
        .log = [this](const std::string& line) { options_.log(line); },
        .audit = [this](const std::string& line) { audit(line); },
        .audit_refusal = [this](const std::string& line) { audit_refusal(line); },
        .on_ended =
            [this] {
              if (!is_draining_) return;
              asio::post(loop_, [this] { close_when_idle(); });
            },
        .agent_uid = ::geteuid(),
        .totals = &metrics_.durations,
        .cgroups = &*cgroups_,
        .events = events_.get()});
    if (!made) return std::move(made).error();
    cluster_ = *std::move(made);
    return {};
  }

  Result<void> open_events() {
    if (config_.events_file.empty()) return {};
    auto opened = EventFile::open(
        {.path = config_.events_file, .on_trouble = [this](const std::string& line) {
           asio::post(loop_, [this, line] { options_.log(printable(line)); });
         }});
    if (!opened) return std::move(opened).error();
    event_file_ = *std::move(opened);
    events_ = std::make_unique<EventDiary>(
        config_.node_id, [this](std::string line) { event_file_->add(std::move(line)); });
    return {};
  }

  static EventSubject subject_of(const v1::Job& job) {
    return {.job_id = job.job_id(), .job_uuid = job.job_uuid(), .generation = job.generation()};
  }

  void stay_drained() {
    const auto found = drain_mark_.read();
    if (!found) return;
    jobs_->set_draining(true);
    if (!found->complaint.empty()) options_.log("the mark of a drained node: " + found->complaint);
    options_.log("this node is drained" + (found->reason.empty() ? "" : ": " + found->reason) +
                 "; `accel undrain` lets it start jobs again");
  }

  Result<void> open_sockets() {
    const std::string socket = config_.runtime_dir + "/agent.sock";
    const std::string tickets = config_.runtime_dir + "/tickets.sock";
    ::unlink(socket.c_str());
    std::vector<grpc::Service*> services = {control_.get()};
    if (cluster_) {
      for (grpc::Service* service : cluster_->services()) services.push_back(service);
    }
    auto server = GrpcServer::start(config_, socket, services, [this](const std::string& line) {
      asio::post(loop_, [this, line] {
        ++metrics_.connections_refused;
        tell_refusal(line);
      });
    });
    if (!server) return std::move(server).error();
    server_ = *std::move(server);
    server_->set_health("accel.v1.Control", true);
    auto listening = TicketServer::listen(loop_, tickets, tickets_, manager_.take("tickets"));
    if (!listening) return std::move(listening).error();
    ticket_server_ = *std::move(listening);
    are_tickets_kept_ = manager_.keep(ticket_server_->fd(), "tickets");
    const auto access = choose_socket_access(config_.socket_group, ::geteuid(), find_group);
    if (!access) return access.error();
    if (::geteuid() == 0 && access->mode == 0600) {
      options_.log("only root may connect to the sockets: there is no group " +
                   std::string(kDefaultSocketGroup) +
                   "; make it, or set socket_group (\"*\": everybody)");
    }
    if (auto opened = open_socket(socket, *access); !opened) return opened;
    return open_socket(tickets, *access);
  }

  Result<void> serve_metrics() {
    if (config_.metrics_listen.empty()) return {};
    metrics_.version = options_.version;
    metrics_.node_id = config_.node_id;
    const auto endpoint = supervisor::parse_tcp_endpoint(config_.metrics_listen);
    if (!endpoint) return endpoint.error();
    auto serving = supervisor::MetricsServer::listen(
        loop_,
        *endpoint,
        {.collect = [this](auto done) { collect_metrics(std::move(done)); },
         .is_ending = [this] { return is_draining_ || is_closing_; }});
    if (!serving) return std::move(serving).error();
    metrics_server_ = *std::move(serving);
    options_.log("serves metrics at port " + std::to_string(metrics_server_->port()) + " of " +
                 endpoint->address().to_string());
    measure_lag();
    return {};
  }

  void collect_metrics(std::function<void(std::string)> done) {
    look_everywhere<supervisor::MetricPage>(
        [](supervisor::MetricPage& page, const CoordinatorHost& host) { add_host(page, host); },
        [this, done = std::move(done)](supervisor::MetricPage page) {
          metrics_.is_draining = jobs_->is_draining();
          if (dashboard_) metrics_.dashboard = dashboard_->refusals();
          done(write_metrics(metrics_, *jobs_, cluster_.get(), std::move(page)));
        });
  }

  Result<void> serve_dashboard() {
    if (config_.dashboard_listen.empty()) return {};
    const auto endpoint = supervisor::parse_tcp_endpoint(config_.dashboard_listen);
    if (!endpoint) return endpoint.error();
    auto serving = supervisor::DashboardServer::listen(
        loop_,
        *endpoint,
        {.viewers = random_digits(kTokenDigits), .operators = random_digits(kTokenDigits)},
        {.collect = [this](auto done) { collect_dashboard(std::move(done)); },
         .read_log =
             [this](const auto& question, auto done) {
               read_log(question, *jobs_, parts(), logs_, std::move(done));
             },
         .read_curves =
             [this](const auto& job, auto done) {
               curves_.read(tracking_folder_of(job, *jobs_, parts()), std::move(done));
             },
         .deeds = {DashboardDeed::kStop, DashboardDeed::kDrain, DashboardDeed::kStacks},
         .act = [this](const auto& action,
                       auto done) { carry_out(action, *control_, loop_, std::move(done)); }});
    if (!serving) return std::move(serving).error();
    dashboard_ = *std::move(serving);
    const std::string& folder = config_.runtime_dir;
    auto written = supervisor::write_dashboard_url(folder + kViewersFile, dashboard_->address());
    if (!written) return written;
    written =
        supervisor::write_dashboard_url(folder + kOperatorsFile, dashboard_->operators_address());
    if (!written) return written;
    options_.log("serves the dashboard at port " + std::to_string(dashboard_->port()) + " of " +
                 endpoint->address().to_string() + "; its address for viewers is in " + folder +
                 kViewersFile + ", and for operators in " + folder + kOperatorsFile);
    return {};
  }

  // nullptr: this agent takes no part in jobs over several nodes.
  [[nodiscard]] const NodeJobs* parts() const {
    return cluster_ == nullptr ? nullptr : cluster_->node();
  }

  void collect_dashboard(std::function<void(supervisor::DashboardState)> done) {
    look_everywhere<supervisor::DashboardState>(
        [](supervisor::DashboardState& shown, const CoordinatorHost& host) {
          if (host.is_leading()) add_coordinator(shown, host.state(), SteadyClock().now());
        },
        [this, done = std::move(done)](supervisor::DashboardState shown) {
          const TimePoint now = clock_.now();
          shown.program = "accel-agent";
          shown.version = options_.version;
          shown.node = config_.node_id;
          shown.wall_seconds = seconds_since_1970();
          shown.is_over = is_closing_;
          shown.is_drained = jobs_->is_draining();
          if (parts() != nullptr) add_parts(shown, config_.node_id, *parts(), now);
          add_jobs(shown, config_.node_id, *jobs_, now);
          if (parts() != nullptr && !cluster_->hosts_coordinator())
            shown.notice =
                "nodes, and jobs over several nodes as a whole, are shown by the agent at " +
                config_.coordinator;
          done(std::move(shown));
        });
  }

  // Where the workers stand, shims know; of the cluster the coordinator, of which `of_host` takes what it needs, on its
  // loop. One that does not answer keeps nobody waiting.
  template <typename Made>
  void look_everywhere(std::function<void(Made&, const CoordinatorHost&)> of_host,
                       std::function<void(Made)> done) {
    struct Round {
      int num_waiting = 2;  // for the shims and the coordinator
      Made made = {};
    };
    const auto round = std::make_shared<Round>();
    const auto take_made = [round] { return std::move(round->made); };
    const auto answer = TimedAnswer<Made>::begin(loop_, kLookPatience, take_made, std::move(done));
    const auto finish_one = [round, answer, take_made] {
      if (--round->num_waiting == 0) answer->give(take_made());
    };
    jobs_->look(finish_one);
    if (!cluster_ || !cluster_->hosts_coordinator()) return finish_one();
    cluster_->look_at_host([this, round, finish_one, of_host](const CoordinatorHost& host) {
      Made made;
      of_host(made, host);
      asio::post(loop_, [round, finish_one, made = std::move(made)] {
        round->made = made;
        finish_one();
      });
    });
  }

  void measure_lag() {
    lag_.expires_after(kMeasureLag);
    lag_.async_wait([this](const boost::system::error_code& error) {
      if (error) return;
      metrics_.loop_lag.observe(clock_.now() - lag_.expiry());
      measure_lag();
    });
  }

  void tell_connection_limit() const {
    if (config_.listen.empty()) return;
    const int held = connection_limits(config_).most;
    if (held < config_.max_connections) {
      options_.log("warning: max_connections is " + std::to_string(config_.max_connections) +
                   ", and the limit of open files has room for " + std::to_string(held) +
                   ": raise it (`ulimit -n`, LimitNOFILE of the unit)");
    }
  }

  // As each job would be told.
  void tell_limit_that_cannot_hold() {
    const auto tried = cgroups_->make("limit", std::nullopt);
    if (tried) return cgroups_->remove(*tried);
    options_.log("warning: no job can be started: " + tried.error().message());
  }

  // Of a user's process, the environment is for its user and for this right; a cgroup is for its maker.
  void tell_missing_rights() const {
    constexpr uid_t kSomebodyElse = 65'534;
    if (cgroups_->are_there() || ::geteuid() != 0 || supervisor::can_read_tags_of(kSomebodyElse))
      return;
    options_.log(
        "warning: without cgroups (version 2) and without CAP_SYS_PTRACE what a user's killed shim "
        "leaves cannot be found: add it to CapabilityBoundingSet of the unit");
  }

  void watch_health() {
    if (manager_.watchdog().count() == 0) return;
    std::vector<HealthWatch::Loop> loops = {{"the supervisor's loop", loop_}};
    if (cluster_ && cluster_->hosts_coordinator())
      loops.push_back({"the coordinator's loop", cluster_->coordinator_loop()});
    health_ = std::make_unique<HealthWatch>(
        std::move(loops),
        config_.runtime_dir + "/agent.sock",
        manager_.watchdog() / 3,
        HealthWatch::Handlers{.sign = [this] { manager_.sign_of_life(); },
                              .on_missing =
                                  [this](const std::string& what) {
                                    manager_.status("no sign of life of " + what);
                                    options_.log("no sign of life of " + what);
                                  }});
  }

  void listen_for_signals() {
    for (const int signal : {SIGTERM, SIGINT, SIGHUP, SIGUSR2}) signals_.add(signal);
    wait_for_signal();
  }

  void wait_for_signal() {
    signals_.async_wait([this](const boost::system::error_code& error, int signal) {
      if (error) return;
      if (signal == SIGHUP) {
        reload();
      } else if (signal == SIGUSR2) {
        leave(signal);
      } else {
        drain(signal);
      }
      wait_for_signal();
    });
  }

  // A bad file leaves everything as it was. Addresses and folders stay until the next start.
  void reload() {
    manager_.reloading();
    auto fresh = options_.load();
    if (!fresh) {
      options_.log("the configuration is kept, the new one cannot be used:\n" +
                   fresh.error().render("accel-agent"));
    } else {
      config_.allow_root = fresh->allow_root;
      config_.allow_users = fresh->allow_users;
      config_.remote_users = fresh->remote_users;
      config_.drain_grace = fresh->drain_grace;
      options_.log("the configuration was read again");
    }
    manager_.ready("serving");
  }

  // The first signal stops the jobs gently, the second one kills them.
  void drain(int signal) {
    const bool is_again = is_draining_;
    is_draining_ = true;
    jobs_->set_draining(true);
    options_.log("signal " + std::to_string(signal) + ": " + std::to_string(num_running()) +
                 " jobs to stop");
    manager_.stopping("stopping jobs");
    manager_.extend(config_.drain_grace + std::chrono::seconds(15));
    jobs_->stop_all(is_again ? StopMode::kKill : StopMode::kTerminate);
    if (is_again) {
      kill_parts();
    } else {
      if (cluster_) cluster_->leave("its agent ends");
      grace_.expires_after(config_.drain_grace);
      grace_.async_wait([this](const boost::system::error_code& error) {
        if (error) return;
        jobs_->stop_all(StopMode::kKill);
        kill_parts();
      });
    }
    close_when_idle();
  }

  // For a restart or an upgrade: the next agent takes the jobs over. Jobs that would not outlive us are stopped instead.
  void leave(int signal) {
    if (!jobs_->holds_all() || (cluster_ && !cluster_->holds_all())) {
      options_.log("jobs of this agent are not held (hold_seconds: 0)");
      return drain(signal);
    }
    options_.log("signal " + std::to_string(signal) + ": " + std::to_string(num_running()) +
                 " jobs go on without an agent for up to " +
                 std::to_string(config_.hold.count() / 1000) + " s");
    manager_.stopping("leaving jobs to their shims");
    is_leaving_ = true;
    if (cluster_) cluster_->let_go();
    close();
  }

  [[nodiscard]] int num_running() const {
    return jobs_->num_running() + (cluster_ ? cluster_->num_running() : 0);
  }

  void kill_parts() {
    if (cluster_) cluster_->kill();
  }

  void on_change(const v1::Job& job) {
    if (events_) events_->job_changed(job);
    if (!server_) return;  // at the start, before anybody listens
    control_->on_change(job);
    server_->set_health("job/" + job.job_uuid(), !has_ended(job));
    if (has_ended(job)) options_.log("job " + job.job_id() + " ended: " + printable(job.reason()));
    // The job that changed is still being handled: look at the others afterwards.
    if (is_draining_) asio::post(loop_, [this] { close_when_idle(); });
  }

  void close_when_idle() {
    if (num_running() == 0) close();
  }

  void close() {
    if (is_closing_) return;
    is_closing_ = true;
    grace_.cancel();
    control_->close_streams();
    if (dashboard_) dashboard_->end();
    if (cluster_) return cluster_->close([this] { close_server(); });
    close_server();
  }

  void close_server() {
    // The loop must run on while calls end: they finish there.
    closer_ = std::thread([this] {
      server_->shutdown();
      asio::post(loop_, [this] { loop_.stop(); });
    });
  }

  void audit(const std::string& line) { options_.log("audit: " + printable(line)); }
  void audit_refusal(const std::string& line) {
    ++metrics_.audit_refusals;
    tell_refusal(line);
  }
  void tell_refusal(const std::string& line) {
    if (const auto admitted = refusals_.admit(line)) audit(*admitted);
  }

  void watch_certificates() {
    if (config_.listen.empty() || config_.insecure) return;
    std::vector<CertificateEnd> ends;
    for (const std::string& path : {config_.tls.certificate, config_.tls.authority}) {
      // One that is being replaced is read the next time.
      if (auto end = read_certificate_end(path)) ends.push_back(*std::move(end));
    }
    metrics_.certificates = ends;
    for (const auto& line : expiry_.warnings(ends, std::chrono::system_clock::now()))
      options_.log("warning: " + line);
    certificates_.expires_after(kLookAtCertificates);
    certificates_.async_wait([this](const boost::system::error_code& error) {
      if (!error) watch_certificates();
    });
  }

  void watch_revocations() {
    const auto& revoked = config_.tls.revoked;
    if (!revoked) return;
    revocations_.expires_after(kLookAtTlsFiles);
    revocations_.async_wait([this, &revoked](const boost::system::error_code& error) {
      if (error) return;
      const auto look = revoked->look_again();
      if (!look.warning.empty()) options_.log("warning: " + look.warning);
      if (look.has_changed) {
        options_.log("certificates revoked by " + config_.tls.crl + ": " +
                     std::to_string(revoked->size()));
        control_->end_revoked(*revoked);
        if (cluster_) cluster_->end_revoked(*revoked);
      }
      watch_revocations();
    });
  }

  const AgentOptions& options_;
  AgentConfig config_;
  asio::io_context loop_{1};
  asio::signal_set signals_;
  asio::steady_timer grace_;
  asio::steady_timer certificates_;
  asio::steady_timer revocations_;
  asio::steady_timer lag_;
  AgentMetrics metrics_;
  ServiceManager manager_;
  SteadyClock clock_;
  TicketBook tickets_{clock_};
  UserDirectory users_{loop_};
  FileReaders files_{loop_};
  DashboardLogs logs_{loop_, files_};
  JobCurves curves_{
      loop_, files_, {.program = accel_beside_agent(), .changes_user = ::geteuid() == 0}};
  RefusalLog refusals_{clock_};
  CertificateExpiry expiry_;
  UniqueFd lock_;
  DrainMark drain_mark_{config_.state_dir};
  std::unique_ptr<EventFile> event_file_;  // nullptr: none is kept
  std::unique_ptr<EventDiary> events_;
  std::optional<JobCgroups> cgroups_;  // from start() on
  std::unique_ptr<JobRunner> jobs_;
  std::unique_ptr<ClusterPart> cluster_;  // nullptr: jobs on this node alone
  std::unique_ptr<ControlService> control_;
  std::unique_ptr<GrpcServer> server_;
  std::unique_ptr<TicketServer> ticket_server_;
  std::thread closer_;
  std::unique_ptr<HealthWatch> health_;
  std::unique_ptr<supervisor::MetricsServer> metrics_server_;
  std::unique_ptr<supervisor::DashboardServer> dashboard_;
  bool is_draining_ = false;
  bool is_leaving_ = false;
  bool are_tickets_kept_ = false;
  bool is_closing_ = false;
};

}  // namespace

Result<int> run_agent(const AgentOptions& options) {
  auto config = options.load();
  if (!config) return std::move(config).error();
  Agent agent(options, *std::move(config));
  if (auto started = agent.start(); !started) {
    ServiceManager::failed(EINVAL, started.error().message());
    return std::move(started).error();
  }
  return agent.run();
}

}  // namespace accel::agent
