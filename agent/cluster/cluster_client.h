// ClusterClient: what this agent asks other agents about jobs of many nodes.
//
// Channels are made when they are first needed, and closed when nobody has asked for a while. Every call carries a proof of the cluster's token, when there
// is one, beside this node's certificate. Without TLS the answer must prove it too (CallProof): nothing else is taken of one
// that does not.
//
// Threads:  everything on the loop; answers come there too.
// Source:   proto/accel/v1/cluster.proto, docs/admin/security.md.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <grpcpp/grpcpp.h>

#include <accel/result.h>

#include "accel/v1/cluster.grpc.pb.h"
#include "agent/calls/client_channel.h"
#include "agent/calls/open_calls.h"
#include "agent/calls/peer_channels.h"
#include "agent/config/agent_config.h"
#include "agent/jobs/job_page.h"

namespace accel::agent {

// The metadata of a call by which a node shows that it knows the token: with TLS see TokenProof; the nonce is the caller's.
inline constexpr const char* kNodeMetadata = "accel-node";
inline constexpr const char* kNonceMetadata = "accel-nonce-bin";
inline constexpr const char* kProofMetadata = "accel-proof-bin";
inline constexpr const char* kProofSubject = "accel.v1.Cluster";  // in place of a job's uuid
// Without TLS, beside these: see CallProof.
inline constexpr const char* kToMetadata = "accel-to";
inline constexpr const char* kSentMetadata = "accel-sent";
inline constexpr const char* kAnswerMetadata = "accel-answer-bin";  // of the answer

class ClusterClient {
 public:
  template <typename Response>
  using Done = std::function<void(Result<Response>)>;

  ClusterClient(boost::asio::io_context& loop, const AgentConfig& config, std::string token_key);
  // Cancels what is under way; the loop may go after it.
  ~ClusterClient();

  // From now on the coordinator is there; at first, where the configuration says.
  void ask(const std::string& leader) { coordinator_ = leader; }
  [[nodiscard]] const std::string& coordinator() const { return coordinator_; }

  // Calls from now on make connections of their own: certificates are looked at anew.
  void forget_channels() { channels_->forget_all(); }
  // A connection for a session, not one of those for calls. Errors  kTls.
  [[nodiscard]] Result<std::shared_ptr<grpc::Channel>> open_channel(
      const std::string& endpoint) const {
    return channels_->open(endpoint);
  }

  void submit(const v1::SubmitReq& request, Done<v1::Job> done);
  // All of them, page by page, or the one that is named.
  void jobs(const v1::JobsReq& request, Done<v1::JobList> done);
  // One page of all.
  void page_of_jobs(const v1::JobsReq& request, Done<v1::JobList> done);
  // Comes when something has changed.
  void changes(const v1::ChangesReq& request, Done<v1::JobChanges> done);
  void stop(const v1::StopPartsReq& request, Done<v1::Job> done);
  void scale(const v1::ScalePartsReq& request, Done<v1::Job> done);
  void ledger(const v1::JobRef& request, Done<v1::Ledger> done);
  void signal(const std::string& endpoint, const v1::PartSignalReq& request, Done<v1::Done> done);
  void diagnose(const std::string& endpoint,
                const v1::PartDiagReq& request,
                Done<v1::DiagReport> done);

  // The output of one node's part. One chunk at a time: the next one is asked for with next().
  class PartLogs;
  struct PartLogsHandlers {
    std::function<void(v1::LogChunk)> on_chunk;
    std::function<void(const grpc::Status&)> on_end;
  };
  [[nodiscard]] std::shared_ptr<PartLogs> logs(const std::string& endpoint,
                                               const v1::PartLogsReq& request,
                                               PartLogsHandlers handlers);

 private:
  Result<PeerChannels::Stub> stub(const std::string& endpoint);
  void close_idle_later();
  // Gives the nonce that the answer must prove; empty: it need not.
  std::string sign(grpc::ClientContext& context, const std::string& endpoint) const;
  // What a call ended with, as far as the answer is believed.
  [[nodiscard]] grpc::Status believed(const grpc::ClientContext& context,
                                      const std::string& nonce,
                                      const grpc::Status& status) const;
  template <typename Request, typename Response, typename Begin>
  void call(const std::string& endpoint,
            const Request& request,
            Done<Response> done,
            Begin begin,
            std::chrono::seconds deadline = kUnaryDeadline);
  void next_page(const v1::JobsReq& request,
                 const std::shared_ptr<JobPages>& pages,
                 Done<v1::JobList> done);

  boost::asio::io_context& loop_;
  const AgentConfig& config_;
  std::string token_key_;
  std::string call_key_;  // empty: TLS, or no token
  std::string coordinator_;
  const std::shared_ptr<PeerChannels> channels_;  // the timer asks whether they are still there
  boost::asio::steady_timer idle_timer_;
  OpenCalls calls_{loop_};
  std::vector<std::weak_ptr<PartLogs>> logs_;
};

class ClusterClient::PartLogs final : public grpc::ClientReadReactor<v1::LogChunk>,
                                      public std::enable_shared_from_this<PartLogs> {
 public:
  PartLogs(boost::asio::io_context& loop, ClusterClient& client, PartLogsHandlers handlers)
      : loop_(loop), client_(client), handlers_(std::move(handlers)) {}

  void next();
  // Nothing is told any more.
  void cancel();

  void OnReadDone(bool ok) override;
  void OnDone(const grpc::Status& status) override;

 private:
  friend class ClusterClient;
  boost::asio::io_context& loop_;
  ClusterClient& client_;
  PartLogsHandlers handlers_;
  std::string nonce_;
  bool has_chunk_ = false;    // of gRPC's threads, in turn
  bool is_believed_ = false;  // the same
  std::shared_ptr<v1::Cluster::Stub> stub_;
  grpc::ClientContext context_;
  v1::PartLogsReq request_;
  v1::LogChunk chunk_;
  bool is_over_ = false;
  std::shared_ptr<PartLogs> self_;  // until OnDone
};

}  // namespace accel::agent
