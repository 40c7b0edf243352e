// ClusterPart: this agent's share in jobs of many nodes: its session, its parts of jobs and, where its own `listen` is
// the cluster's `coordinator`, the coordinator with its journal. With etcd every agent hosts one, and etcd says which of
// them decides.
//
// The coordinator, and what other agents ask of it, is on a loop and a thread of its own: no call, no shim and no session of
// this node keeps it from its ticks and from the beats of other nodes. What it has to say is posted.
//
// Threads:  everything on the loop, but where it says otherwise.
// Source:   docs/admin/agent.md.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <boost/asio/io_context.hpp>
#include <grpcpp/grpcpp.h>
#include <sys/types.h>

#include <accel/result.h>

#include "agent/access/user_directory.h"
#include "agent/cluster/cluster_client.h"
#include "agent/cluster/cluster_service.h"
#include "agent/cluster/cluster_watch.h"
#include "agent/cluster/loop_thread.h"
#include "agent/config/agent_config.h"
#include "agent/etcd/etcd_election.h"
#include "agent/files/file_readers.h"
#include "agent/jobs/event_diary.h"
#include "agent/jobs/job_folder.h"
#include "agent/jobs/job_runner.h"
#include "agent/parts/node_jobs.h"
#include "agent/rendezvous/coordinator_host.h"

namespace accel::agent {

class ClusterPart {
 public:
  struct Parts {
    boost::asio::io_context& loop;
    const AgentConfig& config;
    UserDirectory& users;
    FileReaders& files;
    JobRunner& jobs;  // of this node alone: whose ids are taken, and whether it is drained
    std::function<void(const std::string&)> log;
    std::function<void(const std::string&)> audit;
    std::function<void(const std::string&)> audit_refusal;  // of strangers: may come in floods
    std::function<void()> on_ended;                         // a part of this node has ended
    uid_t agent_uid = 0;
    supervisor::DurationTotals* totals = nullptr;  // what took how long; empty: not counted
    JobCgroups* cgroups = nullptr;                 // one for each shim; empty: none
    EventDiary* events = nullptr;  // of the parts and of the coordinator; empty: none are kept
  };
  // Requires: config.coordinator is set.
  // Errors  kAuthentication (the token file), kTls, kFileIo; those of the journal, or of etcd.
  [[nodiscard]] static Result<std::unique_ptr<ClusterPart>> make(Parts parts);
  // Waits for what the coordinator's thread does just now.
  ~ClusterPart();

  // To be served by the agent, as long as this object lives.
  [[nodiscard]] std::vector<grpc::Service*> services();

  // Begins the session. `tcp_port` is what the agent listens at.
  void start(int tcp_port);

  [[nodiscard]] ClusterClient& client() { return *client_; }
  [[nodiscard]] ClusterWatch& watch() { return *watch_; }
  [[nodiscard]] bool hosts_coordinator() const { return host_ != nullptr; }
  // Of the coordinator; its thread runs from make() to the end of this object. Requires: hosts_coordinator().
  [[nodiscard]] boost::asio::io_context& coordinator_loop() { return coordinator_thread_->loop(); }
  // Calls `look` there.
  void look_at_host(std::function<void(const CoordinatorHost&)> look);
  // nullptr before start().
  [[nodiscard]] const NodeJobs* node() const { return node_.get(); }

  // Stops this node's parts; other nodes go on without it. Again: kills them.
  void leave(const std::string& reason);
  // The same for the jobs of now; the node may take part in them, and in others, again.
  void leave_jobs(const std::string& reason);
  void kill();
  // Begins nothing more; what runs here goes on without this agent. Requires: holds_all().
  void let_go() { has_left_ = true; }
  [[nodiscard]] bool holds_all() const { return !node_ || node_->holds_all(); }
  [[nodiscard]] int num_running() const { return node_ ? node_->num_running() : 0; }

  // Ends what peers have here whose certificate is on the list, and what this agent has with them.
  void end_revoked(const RevocationList& revoked);

  // Ends the session and the coordinator. `done` is called when the server may be shut down.
  void close(std::function<void()> done);

 private:
  explicit ClusterPart(Parts parts);

  void make_host();
  void take_report(const Report& report);
  // From any thread: does it on the agent's loop.
  void on_agent_loop(std::function<void()> deed) const;
  void log_from_anywhere(const std::string& line) const;
  Result<void> lead_by_journal();
  Result<void> take_part_in_election();
  std::shared_ptr<grpc::Channel> open_leader(const std::string& address);
  Result<std::optional<UserAccount>> admit(const v1::JobSpec& spec) const;
  // Whether that user has a job of this name here, on this node alone or a part of one.
  [[nodiscard]] bool has_job_named(const std::string& job_id, uid_t user) const;

  Parts parts_;
  std::unique_ptr<LoopThread> coordinator_thread_;  // nullptr: another agent hosts it
  std::string token_key_;
  std::optional<JobFolder> records_;  // until node_ has them
  std::shared_ptr<grpc::Channel> channel_;
  // Of the coordinator's loop; nullptr: another agent hosts it.
  std::unique_ptr<CoordinatorHost> host_;
  std::unique_ptr<EtcdElection> election_;
  std::unique_ptr<ClusterClient> client_;
  std::unique_ptr<ClusterWatch> watch_;
  std::unique_ptr<NodeJobs> node_;
  std::unique_ptr<ClusterService> service_;
  bool has_left_ = false;
};

}  // namespace accel::agent
