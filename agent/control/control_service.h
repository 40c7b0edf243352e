// ControlService: the Control service on the agent's jobs.
//
// gRPC's threads copy what identifies the caller and post; the loop decides, and answers, the callers in turn. Only the
// output of jobs is read elsewhere.
//
// Threads:  constructed and destroyed on the loop; the RPC methods are called by gRPC.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <boost/asio/io_context.hpp>
#include <grpcpp/grpcpp.h>

#include "accel/v1/cluster.pb.h"
#include "accel/v1/control.grpc.pb.h"
#include "agent/access/access_policy.h"
#include "agent/access/caller_shares.h"
#include "agent/access/ticket_book.h"
#include "agent/access/user_directory.h"
#include "agent/calls/call_identity.h"
#include "agent/calls/call_turns.h"
#include "agent/calls/grpc_status.h"
#include "agent/calls/revocable_streams.h"
#include "agent/files/drain_mark.h"
#include "agent/files/file_readers.h"
#include "agent/jobs/job_page.h"
#include "agent/jobs/job_runner.h"

namespace accel::agent {

class ClusterClient;
class ClusterWatch;
class Diagnosis;
class LogStream;

class ControlService final : public v1::Control::CallbackService {
 public:
  struct Parts {
    boost::asio::io_context& loop;
    const AgentConfig& config;
    TicketBook& tickets;
    JobRunner& jobs;
    UserDirectory& users;
    FileReaders& files;
    std::function<void(const std::string&)> audit;
    std::function<void(const std::string&)> audit_refusal;  // of strangers: may come in floods
    uid_t agent_uid = 0;
    ClusterClient* cluster =
        nullptr;  // jobs of many nodes; nullptr: this agent takes no part in them
    ClusterWatch* cluster_watch = nullptr;                      // beside it
    std::function<void(const std::string& reason)> leave_jobs;  // of many nodes, this node's parts
    const DrainMark* drain_mark = nullptr;  // nullptr: drained ends with the agent
  };
  explicit ControlService(Parts parts);

  // A job has changed; watchers are told.
  void on_change(const v1::Job& job);

  // Ends the streams that would go on for ever. Those of the output of ended jobs end by themselves.
  void close_streams();
  // Ends those of callers whose certificate is on the list.
  void end_revoked(const RevocationList& revoked) const { revocable_.end_revoked(revoked); }

  // What the RPCs of these names do, for a caller whom something else than gRPC has identified.
  using Finish = std::function<void(const Result<void>&)>;  // called once
  // `job` is filled, and lives until then.
  void stop_job(const Caller& caller,
                const v1::StopReq& request,
                v1::Job* job,
                const Finish& finish);
  // The same, but without `kill` a job that was asked to stop is left alone: another stop would be a SIGKILL. Errors also
  // kAgentRefused: that.
  void stop_once(const Caller& caller,
                 const v1::StopReq& request,
                 v1::Job* job,
                 const Finish& finish);
  [[nodiscard]] Result<void> drain_node(const Caller& caller, const v1::NodeReq& request);
  struct DiagnosisTaker {
    std::function<void(v1::DiagChunk)> take;
    // The chunks are of this node, and each comes when the one before was taken and next() was called.
    std::function<void(std::shared_ptr<Diagnosis>)> begin;
    Finish finish;
  };
  void diagnose_job(const Caller& caller, const std::string& job, const DiagnosisTaker& taker);

  // The RPCs, by proto/accel/v1/control.proto.
  using Context = grpc::CallbackServerContext;
  grpc::ServerUnaryReactor* StartJob(Context*, const v1::StartReq*, v1::Job*) override;
  grpc::ServerUnaryReactor* StopJob(Context*, const v1::StopReq*, v1::Job*) override;
  grpc::ServerUnaryReactor* SignalJob(Context*, const v1::SignalReq*, v1::Job*) override;
  grpc::ServerUnaryReactor* GetJob(Context*, const v1::JobRef*, v1::Job*) override;
  grpc::ServerUnaryReactor* ListJobs(Context*, const v1::ListReq*, v1::JobList*) override;
  grpc::ServerUnaryReactor* ScaleJob(Context*, const v1::ScaleReq*, v1::Job*) override;
  grpc::ServerUnaryReactor* DrainNode(Context*, const v1::NodeReq*, v1::Done*) override;
  grpc::ServerUnaryReactor* UndrainNode(Context*, const v1::NodeReq*, v1::Done*) override;
  grpc::ServerUnaryReactor* GetLedger(Context*, const v1::JobRef*, v1::Ledger*) override;
  grpc::ServerWriteReactor<v1::Event>* Watch(Context*, const v1::WatchReq*) override;
  grpc::ServerWriteReactor<v1::LogChunk>* Logs(Context*, const v1::LogReq*) override;
  grpc::ServerWriteReactor<v1::DiagChunk>* Diagnose(Context*, const v1::DiagReq*) override;

 private:
  class Watcher;
  class DiagnoseStream;

  [[nodiscard]] v1::Event new_event();
  void tell(Watcher& watcher, const v1::Event& event) const;
  void give_first(Watcher& watcher);

  // Authenticates on the loop, runs `handle(caller)` in the caller's turn and finishes the call with what it gives.
  grpc::ServerUnaryReactor* answer(Context* context,
                                   std::function<Result<void>(const Caller&)> handle);
  // The same for what takes a while: `handle` calls finish() once.
  grpc::ServerUnaryReactor* answer_later(Context* context,
                                         std::function<void(const Caller&, Finish)> handle);

  // The job, when `caller` may do that to it. Errors  kJobUnknown, also for jobs of others.
  Result<const v1::Job*> job_for(const Caller& caller, const std::string& job, Deed deed) const;
  // Gives the workers of `shown` the steps of the agent's last look; it looks again for the next answer.
  void add_steps(const v1::Job& known, v1::Job& shown);
  // Looks the users up as they are now: the job runs with their groups.
  using TakeAccount = std::function<void(const Result<UserAccount>&)>;
  void find_account(const Caller& caller, const v1::JobSpec& spec, const TakeAccount& take) const;
  Result<UserAccount> account_for(const Caller& caller, const v1::JobSpec& spec) const;
  Result<void> start_as(const Caller& caller,
                        const Result<UserAccount>& account,
                        const v1::StartReq& request,
                        v1::Job* job);
  Result<Caller> caller_of(const CallIdentity& call) const;
  // The same for a stream, which takes one of the caller's. Errors  kAgentRefused: it has as many as it may.
  template <typename Stream>
  Result<Caller> admit(const CallIdentity& call, Stream& stream);

  // Jobs of many nodes (control_cluster.cc). `may_be_elsewhere`: nothing here has that name, but the cluster may.
  [[nodiscard]] bool may_be_elsewhere(const Error& error) const;
  [[nodiscard]] v1::OnBehalf behalf_of(const Caller& caller) const;
  void fill_uid(v1::Job& job) const;
  [[nodiscard]] Error not_seen(const v1::Job& job) const;
  void ask_for(const Caller& caller,
               const std::string& job,
               std::function<void(const Result<v1::JobsReq>&)> ask) const;
  void find_elsewhere(const Caller& caller,
                      const std::string& job,
                      Deed deed,
                      std::function<void(Result<v1::Job>)> done) const;
  void submit(const Caller& caller,
              const v1::StartReq& request,
              v1::Job* job,
              const Finish& finish);
  void submit_as(const Caller& caller,
                 Result<UserAccount> account,
                 const v1::StartReq& request,
                 v1::Job* job,
                 const Finish& finish);
  void take_watched(const std::shared_ptr<Watcher>& watcher, v1::Job job);
  using TakeJobs = std::function<void(const Result<JobsElsewhere>&)>;
  void list_elsewhere(const Caller& caller, const std::string& after, const TakeJobs& done) const;
  void take_page(const Caller& caller, const v1::JobList& page, const TakeJobs& done) const;
  void stop_elsewhere(const Caller& caller,
                      const v1::StopReq& request,
                      v1::Job* job,
                      const Finish& finish);
  void signal_elsewhere(const Caller& caller,
                        const v1::SignalReq& request,
                        v1::Job* job,
                        const Finish& finish);
  void scale_elsewhere(const Caller& caller,
                       const v1::ScaleReq& request,
                       v1::Job* job,
                       const Finish& finish);
  void ledger_elsewhere(const Caller& caller,
                        const std::string& job,
                        v1::Ledger* ledger,
                        const Finish& finish);
  void diagnose_elsewhere(const Caller& caller,
                          const std::string& job,
                          const DiagnosisTaker& taker);
  void watch_elsewhere(const std::shared_ptr<Watcher>& watcher);
  void follow_elsewhere(const std::shared_ptr<Watcher>& watcher, const v1::Job& job);
  void logs_elsewhere(const Caller& caller,
                      const v1::LogReq& request,
                      const std::shared_ptr<LogStream>& stream);

  Parts parts_;
  std::uint64_t next_event_ = 1;
  std::set<std::shared_ptr<Watcher>> watchers_;
  std::vector<std::pair<std::weak_ptr<LogStream>, std::string>>
      log_streams_;  // and the uuid of whose output
  CallerShares streams_{{.most = 1024, .most_each = 64, .kept = 128, .things = "streams"},
                        favoured_users()};
  static constexpr int kMostCallsEach = 8;
  CallTurns calls_;
  RevocableStreams revocable_;
};

}  // namespace accel::agent
