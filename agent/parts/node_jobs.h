// NodeJobs: this agent's parts in jobs of many nodes.
//
// One session with the coordinator, one member's step function for all jobs, and for each job a shim of its own, which
// runs as the job's user. The coordinator invites; `admit` decides whether this node takes part.
//
//   part:  admitted --first Assign--> has a shim --told the job's end, or left--> ended
//             '--of the agent before this one: awaited--^
//
// A shim holds: when this process ends without leaving its jobs, for whatever reason, its workers go on for `hold`.
// The next agent reads the records, takes the shims over, and begins its session when it knows of each part what
// became of it: a part that its Hello does not name is lost to its job.
//
// Threads:  everything on the loop; starting a shim waits for its exec. ShimAdopter's, while shims are taken over.
// Source:   docs/internals/rendezvous.md, docs/admin/agent.md.
#pragma once

#include <chrono>
#include <functional>
#include <list>
#include <memory>
#include <optional>
#include <set>
#include <string>

#include <boost/asio/io_context.hpp>
#include <grpcpp/grpcpp.h>

#include "accel/v1/job.pb.h"
#include "agent/access/user_directory.h"
#include "agent/jobs/job_folder.h"
#include "agent/parts/node_workers.h"
#include "agent/rendezvous/member_session.h"
#include "agent/shims/job_cgroups.h"
#include "agent/shims/shim_adopter.h"
#include "runtime/supervisor/metrics/job_counters.h"
#include "runtime/supervisor/metrics/job_timeline.h"

namespace accel::agent {

struct NodeJobsOptions {
  NodeInfo node;
  std::string token_key;  // empty: no token
  std::string log_dir;
  bool changes_user = false;  // the agent is root: shims get the rights of their users
  std::string shim_path;      // empty: as start_shim()
  int keep_ended = 256;
  std::string shims_dir;              // the shims' sockets are below it, a folder for each user
  std::chrono::milliseconds hold{0};  // how long shims wait for the next agent; 0: not at all
  std::optional<JobFolder>
      records;  // for the next agent, and of the one before; none: no shim holds
  SessionClient::OpenChannel open_leader =
      {};  // to a leader that another agent names; none: it is not followed
  supervisor::DurationTotals* totals =
      nullptr;                    // what took how long, of all parts; empty: not counted
  JobCgroups* cgroups = nullptr;  // one for each shim; empty: none
};

class NodeJobs {
 public:
  struct Part;
  struct Handlers {
    // Whether this node runs the job, and as whom; std::nullopt: it takes no work now, and may be asked again.
    // The user was looked up before. Errors  kAgentRefused, kInvalidArgument: it never will.
    std::function<Result<std::optional<UserAccount>>(const v1::JobSpec&)> admit;
    std::function<void(const std::string&)> log;
    std::function<void(bool is_connected)> on_connection;
    std::function<void()> on_ended;         // a part has ended
    std::function<int()> slots_taken = {};  // by jobs that are not of many nodes
    // Each event of a part's shim, before anything else.
    std::function<void(const Part&, const supervisor::HostEvent&)> on_heard = {};
  };
  struct Part {
    v1::JobSpec spec;
    UserAccount user;
    std::string record_name;
    std::string instance;                  // of the shim that is being taken over
    std::unique_ptr<NodeWorkers> workers;  // from the first Assign to the end
    supervisor::JobCounters counters;
    supervisor::JobTimeline timeline;
    std::uint64_t generation = 0;
    std::uint64_t leader_epoch = 0;  // of the Assign
    int node_index = 0;
    int first_rank = 0;
    int num_ranks = 0;
    std::string shim_dir;  // where its shim has its socket; empty: it does not hold
    std::string cgroup;    // of its shim; empty: none
    std::optional<std::uint64_t> unproved;  // the last generation that ended without proof
    bool is_awaited = false;                // its shim is being taken over
    bool is_recovered = false;              // from its record: `spec` has no environment
    bool is_leaving = false;
    bool has_ended = false;
  };

  NodeJobs(boost::asio::io_context& loop,
           UserDirectory& users,
           std::shared_ptr<grpc::Channel> channel,
           NodeJobsOptions options,
           Handlers handlers);

  // Takes over what the agent before this one left, then begins the session.
  void start();

  // The newest one. nullptr when nothing of it is, or was, here.
  [[nodiscard]] const Part* find(const std::string& uuid) const;

  // In the order of their admission; those that ended are among them.
  [[nodiscard]] const std::list<std::unique_ptr<Part>>& parts() const { return parts_; }

  void signal(const Part& part, int signal);
  void dump_stacks(const Part& part);

  // Stops what runs here and goes out of every job, which the other nodes go on with.
  void leave_all(const std::string& reason);
  // The same for the jobs of now: this node may be asked for them, and for others, again.
  void leave_jobs(const std::string& reason);
  // SIGKILL to what still runs.
  void kill_all();

  [[nodiscard]] int num_running() const;
  // Whether every part that has a shim would outlive this process.
  [[nodiscard]] bool holds_all() const;
  [[nodiscard]] bool is_connected() const { return session_.state().is_welcome; }
  // Where its session goes, when that is not where the configuration says.
  [[nodiscard]] const std::string& leader() const { return session_.leader(); }
  // The coordinator's (PEM); empty: it has not answered, or shows none.
  [[nodiscard]] std::string server_certificate() const { return session_.server_certificate(); }
  // Another connection takes the place of that one.
  void move_to(std::shared_ptr<grpc::Channel> channel) { session_.move_to(std::move(channel)); }
  [[nodiscard]] const NodeJobsOptions& options() const { return options_; }

  // Ends the session. `done` is called when it is gone. Parts that are held go on without this agent.
  void close(std::function<void()> done);

 private:
  void handle(decltype(MemberEvent::what) what) { session_.handle(std::move(what)); }
  void carry_out(const MemberAction& action);
  void on_connection(bool is_connected, const std::string& why);
  void look_at(const std::shared_ptr<const JobDescription>& job);
  void consider(const JobDescription& job);
  void park(const ParkWorkers& order);
  void park_with(const ParkWorkers& order, std::vector<std::string> members);
  [[nodiscard]] Result<supervisor::JobSpec> shim_spec(const Part& part, int num_ranks) const;
  [[nodiscard]] NodeWorkersOptions workers_options(const Part& part,
                                                   supervisor::JobSpec spec) const;
  void make_workers(Part& part, supervisor::JobSpec spec);
  std::optional<FailedCheck> prepare_cgroup(Part& part);
  std::optional<FailedCheck> prepare(Part& part, const JobDescription& job);
  void tell(const Notice& notice);
  void begin_leaving(Part& part);
  void end(Part& part);
  void forget_oldest();
  void leave(Part& part);

  // part_recovery.cc
  [[nodiscard]] Result<void> write_record(const Part& part) const;
  void remove_record(const Part& part) const;
  void recover();
  void take_up(const v1::JobRecord& record);
  void take_over(Part& part, ShimAdopter::Found found);
  void on_adopted(const JobUuid& uuid, const AdoptedGeneration& adopted);
  void on_caught_up(const JobUuid& uuid);
  void connect_when_settled();
  Part* part_of(const JobUuid& uuid);

  boost::asio::io_context& loop_;
  UserDirectory& users_;
  NodeJobsOptions options_;
  Handlers handlers_;
  MemberSession session_;
  std::string last_trouble_;                // told once, however often it comes
  std::list<std::unique_ptr<Part>> parts_;  // in the order of their admission
  std::set<JobUuid> looked_at_;             // their users are being looked up
  bool is_closing_ = false;
  std::unique_ptr<ShimAdopter>
      adopter_;  // the last: its threads end before what they were asked for
};

}  // namespace accel::agent
