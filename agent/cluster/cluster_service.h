// ClusterService: answers other agents about jobs of many nodes.
//
// Where the coordinator is hosted it also takes jobs and changes to them, those of the users in turn. Only nodes may ask;
// what an agent says about its user is believed.
//
// Threads:  what is about this node's parts on the agent's loop, what is about the coordinator on the coordinator's; the RPC
//           methods post there.
// Source:   proto/accel/v1/cluster.proto, docs/admin/security.md.
#pragma once

#include <functional>
#include <map>
#include <string>

#include <boost/asio/io_context.hpp>
#include <grpcpp/grpcpp.h>

#include <accel/result.h>

#include "accel/v1/cluster.grpc.pb.h"
#include "agent/access/access_policy.h"
#include "agent/calls/call_identity.h"
#include "agent/calls/call_turns.h"
#include "agent/calls/revocable_streams.h"
#include "agent/cluster/call_proof.h"
#include "agent/cluster/job_followers.h"
#include "agent/files/file_readers.h"
#include "agent/parts/node_jobs.h"
#include "agent/rendezvous/coordinator_host.h"

namespace accel::agent {

class ClusterService final : public v1::Cluster::CallbackService {
 public:
  struct Parts {
    boost::asio::io_context& loop;
    boost::asio::io_context& coordinator_loop;  // the agent's, where there is no coordinator
    AgentConfig config;
    std::string token_key;                   // empty: certificates alone
    CoordinatorHost* coordinator = nullptr;  // of this process, if any
    FileReaders& files;
    // From both loops.
    std::function<void(const std::string&)> audit;
    std::function<void(const std::string&)> audit_refusal;  // of strangers: may come in floods
    uid_t agent_uid = 0;
  };
  explicit ClusterService(Parts parts);

  // On the agent's loop.
  void set_node(NodeJobs* node) { node_ = node; }

  // On the coordinator's.
  void take_reply(const JobReply& reply);
  // Those who follow jobs are told soon.
  void take_change() { followers_.change(); }
  // Nobody waits for an answer any more.
  void close() { give_up_waiting("the agent ends"); }
  void give_up_waiting(const std::string& why);
  // Ends the calls that wait of agents whose certificate is on the list.
  void end_waiting(const RevocationList& revoked) { followers_.end_revoked(revoked); }
  // On the agent's: their streams.
  void end_revoked(const RevocationList& revoked) const { revocable_.end_revoked(revoked); }

  using Context = grpc::CallbackServerContext;
  grpc::ServerUnaryReactor* Submit(Context*, const v1::SubmitReq*, v1::Job*) override;
  grpc::ServerUnaryReactor* Jobs(Context*, const v1::JobsReq*, v1::JobList*) override;
  grpc::ServerUnaryReactor* Changes(Context*, const v1::ChangesReq*, v1::JobChanges*) override;
  grpc::ServerUnaryReactor* Stop(Context*, const v1::StopPartsReq*, v1::Job*) override;
  grpc::ServerUnaryReactor* Scale(Context*, const v1::ScalePartsReq*, v1::Job*) override;
  grpc::ServerUnaryReactor* JobLedger(Context*, const v1::JobRef*, v1::Ledger*) override;
  grpc::ServerUnaryReactor* PartSignal(Context*, const v1::PartSignalReq*, v1::Done*) override;
  grpc::ServerUnaryReactor* PartDiagnose(Context*,
                                         const v1::PartDiagReq*,
                                         v1::DiagReport*) override;
  grpc::ServerWriteReactor<v1::LogChunk>* PartLogs(Context*, const v1::PartLogsReq*) override;

 private:
  struct NodeCall;
  static NodeCall identify(const Context& context);
  // Puts our own proof of the token into the answer, where one is asked for. `context` has answered nothing yet.
  Result<Caller> caller_of(const NodeCall& call, Context& context);
  [[nodiscard]] Result<void> check_proof(const NodeCall& call, const std::string& name);
  using Finish = std::function<void(const Result<void>&)>;
  // Authenticates on its loop, then `handle(caller, finish)`, which calls finish() once, now or later.
  using Handle = std::function<void(const Caller&, Finish)>;
  grpc::ServerUnaryReactor* answer_as_node(Context* context, Handle handle);
  // In the turn of the user whom the asking agent names; empty: in that agent's own.
  grpc::ServerUnaryReactor* answer_as_coordinator(Context* context,
                                                  const std::string& user,
                                                  Handle handle);
  // Once the coordinator has replied to `request_id`: with what the job is then.
  void answer_later(const std::string& request_id,
                    const std::string& uuid,
                    v1::Job& view,
                    const Finish& finish);
  Result<const Job*> job_of(const std::string& job, const v1::OnBehalf& who) const;
  Result<const NodeJobs::Part*> part_of(const std::string& job, const v1::OnBehalf& who) const;

  void diagnose_into(v1::DiagReport& report,
                     uid_t user,
                     std::vector<v1::Worker> workers,
                     const Finish& finish);

  Parts parts_;
  const std::string call_key_;  // empty: TLS, or no token
  CallNonces nonces_;
  NodeJobs* node_ = nullptr;  // of the agent's loop
  // Of the coordinator's.
  static constexpr int kMostCallsEach = 64;
  CallTurns calls_;
  std::multimap<std::string, Finish> waiting_;  // by request_id
  JobFollowers followers_;
  RevocableStreams revocable_;
};

}  // namespace accel::agent
