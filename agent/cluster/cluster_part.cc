#include "agent/cluster/cluster_part.h"

#include <algorithm>
#include <utility>

#include <boost/asio/dispatch.hpp>
#include <boost/asio/post.hpp>

#include "agent/config/node_address.h"
#include "agent/coordinator/journal/journal.h"
#include "agent/jobs/job_request.h"
#include "agent/rendezvous/token_proof.h"
#include "runtime/printable.h"
#include "runtime/text/endpoint_text.h"
#include "runtime/text/host_name.h"

namespace accel::agent {
namespace {

// Suspicion and loss are multiples of the beat (docs/internals/rendezvous.md).
CoordinatorConfig coordinator_of(const AgentConfig& config) {
  CoordinatorConfig made;
  made.beat_every = config.beat_every;
  made.suspect_after = config.beat_every * 5 / 2;
  made.lost_after = config.beat_every * 9 / 2;
  // Nodes that beat seldom look for a new coordinator as seldom.
  made.rebuild_window = std::max<Milliseconds>(made.rebuild_window, made.lost_after);
  made.max_jobs = config.max_cluster_jobs;
  made.max_jobs_each =
      config.max_cluster_jobs_each > 0 ? config.max_cluster_jobs_each : config.max_cluster_jobs / 2;
  made.max_jobs_kept = config.max_cluster_jobs / 8;
  return made;
}

}  // namespace

ClusterPart::ClusterPart(Parts parts) : parts_(std::move(parts)) {}

ClusterPart::~ClusterPart() {
  if (coordinator_thread_) coordinator_thread_->stop();
}

Result<std::unique_ptr<ClusterPart>> ClusterPart::make(Parts parts) {
  auto made = std::unique_ptr<ClusterPart>(new ClusterPart(std::move(parts)));
  const AgentConfig& config = made->parts_.config;
  if (!config.token_file.empty()) {
    auto token = read_token(config.token_file);
    if (!token) return std::move(token).error();
    made->token_key_ = token_key(*token);
  }
  auto records = JobFolder::open(config.state_dir + "/parts");
  if (!records) return std::move(records).error();
  made->records_ = *std::move(records);
  made->client_ = std::make_unique<ClusterClient>(made->parts_.loop, config, made->token_key_);
  made->watch_ = std::make_unique<ClusterWatch>(made->parts_.loop, *made->client_);
  auto channel = made->client_->open_channel(config.coordinator);
  if (!channel) return std::move(channel).error();
  made->channel_ = *std::move(channel);
  const bool hosts = config.listen == config.coordinator || !config.etcd.endpoints.empty();
  if (hosts) made->make_host();
  made->service_ = std::make_unique<ClusterService>(ClusterService::Parts{
      .loop = made->parts_.loop,
      .coordinator_loop = hosts ? made->coordinator_loop() : made->parts_.loop,
      .config = config,
      .token_key = made->token_key_,
      .coordinator = made->host_.get(),
      .files = made->parts_.files,
      .audit =
          [part = made.get()](const std::string& line) {
            part->on_agent_loop([part, line] { part->parts_.audit(line); });
          },
      .audit_refusal =
          [part = made.get()](const std::string& line) {
            part->on_agent_loop([part, line] { part->parts_.audit_refusal(line); });
          },
      .agent_uid = made->parts_.agent_uid});
  if (!hosts) return made;
  auto begun =
      config.etcd.endpoints.empty() ? made->lead_by_journal() : made->take_part_in_election();
  if (!begun) return std::move(begun).error();
  made->coordinator_thread_->start();
  return made;
}

// Runs at once where this is the agent's loop.
void ClusterPart::on_agent_loop(std::function<void()> deed) const {
  boost::asio::dispatch(parts_.loop, std::move(deed));
}

void ClusterPart::log_from_anywhere(const std::string& line) const {
  on_agent_loop([this, line] { parts_.log(line); });
}

void ClusterPart::look_at_host(std::function<void(const CoordinatorHost&)> look) {
  boost::asio::post(coordinator_loop(), [this, look = std::move(look)] { look(*host_); });
}

// The one place where an agent makes its coordinator.
void ClusterPart::make_host() {
  coordinator_thread_ = std::make_unique<LoopThread>("accel-coord");
  CoordinatorHostOptions options;
  options.config = coordinator_of(parts_.config);
  options.token_key = token_key_;
  options.authenticate = [config = parts_.config,
                          uid = parts_.agent_uid](const CallIdentity& call) {
    return authenticate_remote(call, config, uid);
  };
  options.report = [this](const Report& report) { take_report(report); };
  options.audit = [this](const std::string& line) {
    on_agent_loop([this, line] { parts_.audit_refusal("coordinator: " + line); });
  };
  options.reply = [this](const JobReply& reply) { service_->take_reply(reply); };
  options.deposed = [this](const std::string& why) {
    log_from_anywhere("coordinator: " + printable(why));
    service_->give_up_waiting("this agent does not host the coordinator any more");
    if (election_) election_->depose(why);
  };
  options.changed = [this] {
    if (service_) service_->take_change();
  };
  host_ = std::make_unique<CoordinatorHost>(coordinator_loop(), std::move(options));
}

// What the job is at this moment goes along: the agent's loop does not see the coordinator's state.
void ClusterPart::take_report(const Report& report) {
  EventSubject subject = {.job_id = {}, .job_uuid = report.job_uuid};
  std::string phase;
  if (host_) {
    const auto job = host_->state().jobs.find(report.job_uuid);
    if (job != host_->state().jobs.end()) {
      subject.job_id = job->second.description->job_id;
      subject.generation = job->second.generation;
      phase = name_of(job->second.phase);
    }
  }
  on_agent_loop([this, report, subject, phase] {
    if (parts_.events != nullptr) parts_.events->reported(report, subject, phase);
    if (report.text.empty()) return;
    const std::string about =
        report.node_id.empty() ? "job " + report.job_uuid.substr(0, 8) : "node " + report.node_id;
    parts_.log("coordinator: " + about + ": " + printable(report.text));
  });
}

// The state folder is locked: nobody else has the journal open.
Result<void> ClusterPart::lead_by_journal() {
  auto journal = Journal::open(parts_.config.state_dir + "/coordinator.journal");
  if (!journal) return std::move(journal).error();
  auto reign = take_over(
      *std::move(journal), std::nullopt, coordinator_of(parts_.config), SteadyClock().now());
  if (!reign) return std::move(reign).error();
  const State& state = reign->beginning.state;
  parts_.log("hosts the coordinator, leader epoch " + std::to_string(state.epoch) + ", with " +
             std::to_string(state.jobs.size()) + " jobs of before");
  host_->lead(*std::move(reign));
  return {};
}

Result<void> ClusterPart::take_part_in_election() {
  host_->follow({});
  EtcdElection::Handlers handlers;
  handlers.on_lead = [this](Reign reign) {
    const State& state = reign.beginning.state;
    log_from_anywhere("coordinator: leads with " + std::to_string(state.jobs.size()) +
                      " jobs of before");
    host_->lead(std::move(reign));
  };
  handlers.on_follow = [this](const Leader& leader) {
    log_from_anywhere("coordinator: " +
                      (leader.address.empty() ? "nobody leads" : leader.address + " leads"));
    host_->follow(leader);
    service_->give_up_waiting("this agent does not host the coordinator any more");
  };
  handlers.on_line = [this](const std::string& line) {
    log_from_anywhere("coordinator: " + printable(line));
  };
  auto election = EtcdElection::start(coordinator_loop(),
                                      parts_.config.etcd,
                                      {.cluster = parts_.config.cluster,
                                       .own_address = parts_.config.listen,
                                       .coordinator = coordinator_of(parts_.config),
                                       .election = {}},
                                      std::move(handlers));
  if (!election) return std::move(election).error();
  election_ = *std::move(election);
  return {};
}

// Named by an agent that does not lead. It is believed by its certificate; without TLS, on this machine alone.
std::shared_ptr<grpc::Channel> ClusterPart::open_leader(const std::string& address) {
  const auto parsed = supervisor::parse_tcp_endpoint(address);
  if (!parsed || (parts_.config.insecure && !parsed->address().is_loopback())) return nullptr;
  auto channel = client_->open_channel(address);
  if (!channel) return nullptr;
  return *std::move(channel);
}

std::vector<grpc::Service*> ClusterPart::services() {
  std::vector<grpc::Service*> services = {service_.get()};
  if (host_) services.push_back(host_.get());
  return services;
}

void ClusterPart::start(int tcp_port) {
  const AgentConfig& config = parts_.config;
  // Both were checked with the configuration.
  const auto coordinator = supervisor::parse_tcp_endpoint(config.coordinator);
  const auto listen = supervisor::parse_tcp_endpoint(config.listen)->address();
  NodeJobsOptions options;
  options.node.node_id = config.node_id;
  options.node.boot_id = boot_id();
  options.node.hostname = host_name();
  options.node.addresses = {own_address_towards(*coordinator)};
  options.node.endpoint = endpoint_text(
      listen.is_unspecified() ? options.node.addresses.front() : listen.to_string(), tcp_port);
  options.node.slots = config.slots > 0 ? config.slots : count_slots();
  const auto rack = config.labels.find("rack");
  if (rack != config.labels.end()) options.node.rack = rack->second;
  options.node.readopt_window = config.hold;
  options.token_key = token_key_;
  options.log_dir = config.log_dir;
  options.changes_user = parts_.agent_uid == 0;
  options.keep_ended = config.keep_finished;
  options.shims_dir = config.runtime_dir + "/parts";
  options.hold = config.hold;
  options.records = std::exchange(records_, std::nullopt);
  options.open_leader = [this](const std::string& address) { return open_leader(address); };
  options.totals = parts_.totals;
  options.cgroups = parts_.cgroups;
  node_ = std::make_unique<NodeJobs>(
      parts_.loop,
      parts_.users,
      channel_,
      std::move(options),
      NodeJobs::Handlers{
          .admit = [this](const v1::JobSpec& spec) { return admit(spec); },
          .log = [this](const std::string& line) { parts_.log(printable(line)); },
          .on_connection =
              [this](bool is_connected) {
                if (!is_connected) return;
                // Commands go where the session goes.
                const std::string& leader = node_->leader();
                client_->ask(leader.empty() ? parts_.config.coordinator : leader);
                watch_->move_on();
                parts_.log("has a session with the coordinator at " + client_->coordinator());
              },
          .on_ended = [this] { parts_.on_ended(); },
          .slots_taken = [this] { return parts_.jobs.slots_taken(); },
          .on_heard =
              [this](const NodeJobs::Part& part, const supervisor::HostEvent& event) {
                if (parts_.events == nullptr) return;
                parts_.events->heard({.job_id = part.spec.job_id(),
                                      .job_uuid = part.spec.job_uuid(),
                                      .generation = part.generation,
                                      .first_rank = part.first_rank},
                                     event);
              }});
  service_->set_node(node_.get());
  node_->start();
}

Result<std::optional<UserAccount>> ClusterPart::admit(const v1::JobSpec& spec) const {
  if (has_left_ || parts_.jobs.is_draining()) return std::optional<UserAccount>();
  if (auto checked = check_job_request(spec); !checked) return std::move(checked).error();
  if (!parts_.users.has_answer(spec.user())) return std::optional<UserAccount>();
  auto user = parts_.users.find(spec.user());
  if (!user) return std::move(user).error();
  const AccessPolicy policy(parts_.config, parts_.agent_uid);
  if (auto allowed = policy.check_cluster_user(user->name, user->credentials.uid); !allowed)
    return std::move(allowed).error();
  if (has_job_named(spec.job_id(), user->credentials.uid)) {
    return Error(ErrorCode::kInvalidArgument,
                 "this node has another job '" + spec.job_id() + "' of this user",
                 "choose another --name");
  }
  // The coordinator hears of such jobs with the next beat, and asks again.
  const int needed = std::max(1, static_cast<int>(spec.procs_per_node()));
  if (parts_.jobs.slots_taken() + needed > node_->options().node.slots)
    return std::optional<UserAccount>();
  parts_.audit("takes part in job " + spec.job_id() + " as " + user->name);
  return std::optional(*std::move(user));
}

bool ClusterPart::has_job_named(const std::string& job_id, uid_t user) const {
  const auto& parts = node_->parts();
  return parts_.jobs.find(job_id, user) != nullptr ||
         std::any_of(parts.begin(), parts.end(), [&](const auto& part) {
           return part->spec.job_id() == job_id && part->user.credentials.uid == user &&
                  !part->has_ended;
         });
}

void ClusterPart::leave(const std::string& reason) {
  has_left_ = true;
  if (node_) node_->leave_all(reason);
}

void ClusterPart::leave_jobs(const std::string& reason) {
  if (node_) node_->leave_jobs(reason);
}

void ClusterPart::kill() {
  if (node_) node_->kill_all();
}

void ClusterPart::end_revoked(const RevocationList& revoked) {
  if (host_) {
    boost::asio::post(coordinator_loop(), [this, list = parts_.config.tls.revoked] {
      host_->end_revoked(*list);
      service_->end_waiting(*list);
    });
  }
  service_->end_revoked(revoked);
  client_->forget_channels();
  const std::string certificate = node_ ? node_->server_certificate() : "";
  if (certificate.empty() || !revoked.contains(certificate)) return;
  parts_.audit("leaves the coordinator: its certificate was revoked");
  if (auto channel = client_->open_channel(parts_.config.coordinator))
    node_->move_to(*std::move(channel));
}

void ClusterPart::close(std::function<void()> done) {
  if (!host_) return node_ ? node_->close(std::move(done)) : done();
  // What was posted to the agent's loop before comes before.
  const auto tell = [this, done = std::move(done)] { boost::asio::post(parts_.loop, done); };
  const auto close_host = [this, tell] {
    boost::asio::post(coordinator_loop(), [this, tell] {
      host_->close();
      service_->close();
      if (election_) return election_->end(tell);
      tell();
    });
  };
  boost::asio::post(coordinator_loop(), [this] { service_->close(); });
  if (node_) return node_->close(close_host);
  close_host();
}

}  // namespace accel::agent
