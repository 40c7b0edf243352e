// NodeMember: this node's part in the one job of many nodes that a launcher starts.
//
// What comes from the shim goes into the member's session; what that wants done goes back to the shim.
//
// Threads:  everything on the loop.
// Source:   docs/internals/rendezvous.md.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include <boost/asio/io_context.hpp>
#include <grpcpp/grpcpp.h>

#include "agent/parts/node_workers.h"
#include "agent/rendezvous/member_session.h"

namespace accel::agent {

struct NodeMemberOptions {
  NodeInfo node;
  std::string token_key;     // empty: no token
  int preferred_index = -1;  // the node index it would like; -1: any
  v1::JobSpec job;           // goes with the Join; job_uuid names the job
  NodeWorkersOptions workers;
  SessionClient::OpenChannel open_channel =
      {};  // to a leader that another agent names; none: it is not followed
};

class NodeMember {
 public:
  struct Handlers {
    std::function<void(const Notice&)> on_notice;     // parked, or how the job ended
    std::function<void(const std::string&)> on_line;  // for people
    std::function<void(bool is_connected, const std::string& why)> on_connection;
    std::function<void(const std::string&)> on_refused;  // no further try makes sense
    // A rank has saved for a preemption that nobody told this node of, and its shim stops the others: the node is to leave.
    std::function<void(int rank)> on_preempted;
    std::function<void()> on_finished;
  };
  NodeMember(boost::asio::io_context& loop,
             std::shared_ptr<grpc::Channel> channel,
             NodeMemberOptions options,
             Handlers handlers);

  void start();

  // Another coordinator takes the place of one that is gone. It says what becomes of what runs.
  void move_to(std::shared_ptr<grpc::Channel> channel) { session_.move_to(std::move(channel)); }

  // The coordinator is gone for good: what ran under it ends, SIGKILL after `grace`. The node stays in the job.
  void stop_workers(supervisor::Milliseconds grace);

  // Stops the workers, SIGKILL after `grace`, and goes out of the job; then on_finished.
  void leave(const std::string& reason, supervisor::Milliseconds grace);

  // After the job's end: ends the shim, then on_finished.
  void finish();

  // The second Ctrl-C.
  void kill() { workers_.kill(); }

  void close(std::function<void()> done) { session_.close(std::move(done)); }

  // The coordinator's (PEM); empty: it has not answered, or shows none.
  [[nodiscard]] std::string server_certificate() const { return session_.server_certificate(); }

  [[nodiscard]] const NodeWorkers& workers() const { return workers_; }
  // Null: the node is in no job.
  [[nodiscard]] const LocalMembership* membership() const;

 private:
  void carry_out(const MemberAction& action);
  void take_exit(WorkerExited exited);

  NodeMemberOptions options_;
  Handlers handlers_;
  MemberSession session_;
  NodeWorkers workers_;
  bool is_leaving_ = false;
};

}  // namespace accel::agent
