// NodeJobs: this agent's parts in jobs of many nodes.
//
// One session with the coordinator, one member's step function for all jobs, and for each job a shim of its own, which
// runs as the job's user. The coordinator invites; `admit` decides whether this node takes part.
//
//   part:  admitted --first Assign--> has a shim --told the job's end, or left--> ended
//
// Threads:  everything on the loop; starting a shim waits for its exec.
// Source:   docs/rendezvous.md, docs/agent.md.
#pragma once

#include <functional>
#include <list>
#include <memory>
#include <optional>
#include <string>

#include <boost/asio/io_context.hpp>
#include <grpcpp/grpcpp.h>

#include "accel/v1/job.pb.h"
#include "agent/rendezvous/member_session.h"
#include "agent/rendezvous/node_workers.h"
#include "agent/user_account.h"

namespace accel::agent {

struct NodeJobsOptions {
  NodeInfo node;
  std::string token_key;  // empty: no token
  std::string log_dir;
  bool changes_user = false;  // the agent is root: shims get the rights of their users
  std::string shim_path;      // empty: as start_shim()
  int keep_ended = 256;
  SessionClient::OpenChannel open_leader =
      {};  // to a leader that another agent names; none: it is not followed
};

class NodeJobs {
 public:
  struct Handlers {
    // Whether this node runs the job, and as whom; std::nullopt: it takes no work now, and may be asked again.
    // Errors  kAgentRefused, kInvalidArgument: it never will.
    std::function<Result<std::optional<UserAccount>>(const v1::JobSpec&)> admit;
    std::function<void(const std::string&)> log;
    std::function<void(bool is_connected)> on_connection;
    std::function<void()> on_ended;  // a part has ended
  };
  struct Part {
    v1::JobSpec spec;
    UserAccount user;
    std::unique_ptr<NodeWorkers> workers;  // from the first Assign to the end
    std::uint64_t generation = 0;
    int first_rank = 0;
    int num_ranks = 0;
    bool is_leaving = false;
    bool has_ended = false;
  };

  NodeJobs(boost::asio::io_context& loop,
           std::shared_ptr<grpc::Channel> channel,
           NodeJobsOptions options,
           Handlers handlers);

  void start();

  // By id or uuid; the newest one. nullptr when nothing of it is, or was, here.
  [[nodiscard]] const Part* find(const std::string& job) const;

  void signal(const Part& part, int signal);

  // Stops what runs here and goes out of every job, which the other nodes go on with.
  void leave_all(const std::string& reason);
  // SIGKILL to what still runs.
  void kill_all();

  [[nodiscard]] int num_running() const;
  [[nodiscard]] bool is_connected() const { return session_.state().is_welcome; }
  // Where its session goes, when that is not where the configuration says.
  [[nodiscard]] const std::string& leader() const { return session_.leader(); }
  [[nodiscard]] const NodeJobsOptions& options() const { return options_; }

  // Ends the session. `done` is called when it is gone.
  void close(std::function<void()> done) { session_.close(std::move(done)); }

 private:
  void handle(decltype(MemberEvent::what) what) { session_.handle(std::move(what)); }
  void carry_out(const MemberAction& action);
  void on_connection(bool is_connected, const std::string& why);
  void consider(const JobDescription& job);
  void park(const ParkWorkers& order);
  void park_with(const ParkWorkers& order, std::vector<std::string> members);
  void make_workers(Part& part, int num_ranks);
  void tell(const Notice& notice);
  void end(Part& part);
  void forget_oldest();
  Part* part_of(const JobUuid& uuid);

  boost::asio::io_context& loop_;
  NodeJobsOptions options_;
  Handlers handlers_;
  MemberSession session_;
  std::string last_trouble_;                // told once, however often it comes
  std::list<std::unique_ptr<Part>> parts_;  // in the order of their admission
};

}  // namespace accel::agent
