#include "agent/cluster_part.h"

#include <algorithm>
#include <utility>

#include "agent/coordinator/journal.h"
#include "agent/job_request.h"
#include "agent/rendezvous/node_address.h"
#include "agent/rendezvous/token_proof.h"
#include "runtime/printable.h"

namespace accel::agent {
namespace {

// Suspicion and loss are multiples of the beat (docs/rendezvous.md).
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

bool is_wildcard(const std::string& host) {
  return host == "0.0.0.0" || host == "::";
}

}  // namespace

ClusterPart::ClusterPart(Parts parts) : parts_(std::move(parts)) {}

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
  auto channel = open_channel(config, config.coordinator);
  if (!channel) return std::move(channel).error();
  made->channel_ = *std::move(channel);
  made->client_ = std::make_unique<ClusterClient>(made->parts_.loop, config, made->token_key_);
  const bool hosts = config.listen == config.coordinator || !config.etcd.endpoints.empty();
  if (hosts) made->make_host();
  made->service_ = std::make_unique<ClusterService>(
      ClusterService::Parts{.loop = made->parts_.loop,
                            .config = config,
                            .tickets = made->parts_.tickets,
                            .token_key = made->token_key_,
                            .coordinator = made->host_.get(),
                            .audit = made->parts_.audit,
                            .audit_refusal = made->parts_.audit_refusal,
                            .agent_uid = made->parts_.agent_uid});
  if (hosts) {
    auto begun =
        config.etcd.endpoints.empty() ? made->lead_by_journal() : made->take_part_in_election();
    if (!begun) return std::move(begun).error();
  }
  return made;
}

// The one place where an agent makes its coordinator.
void ClusterPart::make_host() {
  CoordinatorHostOptions options;
  options.config = coordinator_of(parts_.config);
  options.token_key = token_key_;
  options.authenticate = [this](const CallIdentity& call) {
    return authenticate(call, parts_.tickets, parts_.config, parts_.agent_uid);
  };
  options.report = [this](const Report& report) {
    tell_event(report);
    if (report.text.empty()) return;
    const std::string about =
        report.node_id.empty() ? "job " + report.job_uuid.substr(0, 8) : "node " + report.node_id;
    parts_.log("coordinator: " + about + ": " + printable(report.text));
  };
  options.audit = [this](const std::string& line) { parts_.audit_refusal("coordinator: " + line); };
  options.reply = [this](const JobReply& reply) { service_->take_reply(reply); };
  options.deposed = [this](const std::string& why) {
    parts_.log("coordinator: " + printable(why));
    service_->give_up_waiting("this agent does not host the coordinator any more");
    if (election_) election_->depose(why);
  };
  host_ = std::make_unique<CoordinatorHost>(parts_.loop, std::move(options));
}

void ClusterPart::tell_event(const Report& report) const {
  if (parts_.events == nullptr || !host_) return;
  EventSubject subject = {.job_id = {}, .job_uuid = report.job_uuid};
  const auto job = host_->state().jobs.find(report.job_uuid);
  if (job == host_->state().jobs.end()) return parts_.events->reported(report, subject, "");
  subject.job_id = job->second.description->job_id;
  subject.generation = job->second.generation;
  parts_.events->reported(report, subject, name_of(job->second.phase));
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
    parts_.log("coordinator: leads with " + std::to_string(state.jobs.size()) + " jobs of before");
    host_->lead(std::move(reign));
  };
  handlers.on_follow = [this](const Leader& leader) {
    parts_.log("coordinator: " +
               (leader.address.empty() ? "nobody leads" : leader.address + " leads"));
    host_->follow(leader);
    service_->give_up_waiting("this agent does not host the coordinator any more");
  };
  handlers.on_line = [this](const std::string& line) {
    parts_.log("coordinator: " + printable(line));
  };
  auto election = EtcdElection::start(parts_.loop,
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
  const auto parsed = parse_tcp_address(address);
  if (!parsed || (parts_.config.insecure && !parsed->is_loopback)) return nullptr;
  auto channel = open_channel(parts_.config, address);
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
  const auto coordinator = parse_tcp_address(config.coordinator);
  const auto listen = parse_tcp_address(config.listen);
  NodeJobsOptions options;
  options.node.node_id = config.node_id;
  options.node.boot_id = boot_id();
  options.node.hostname = host_name();
  options.node.addresses = {own_address_towards(*coordinator)};
  options.node.endpoint = endpoint_text(
      is_wildcard(listen->host) ? options.node.addresses.front() : listen->host, tcp_port);
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

void ClusterPart::close(std::function<void()> done) {
  service_->close();
  const auto close_host = [this, done = std::move(done)] {
    if (host_) host_->close();
    service_->close();  // of what came since
    if (election_) return election_->end(done);
    done();
  };
  if (node_) return node_->close(close_host);
  close_host();
}

}  // namespace accel::agent
