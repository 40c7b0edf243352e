#include "agent/cluster/cluster_client.h"

#include "agent/access/ticket_book.h"
#include "agent/calls/grpc_status.h"
#include "agent/cluster/call_proof.h"
#include "agent/cluster/job_followers.h"
#include "agent/rendezvous/token_proof.h"

namespace accel::agent {
namespace {

namespace asio = boost::asio;

Unanswered nobody_at(const std::string& endpoint) {
  return {.code = ErrorCode::kCoordinatorLost,
          .endpoint = "the agent at " + endpoint,
          .remedy = "see whether it runs, and `coordinator` of this agent's configuration"};
}

}  // namespace

ClusterClient::ClusterClient(asio::io_context& loop,
                             const AgentConfig& config,
                             std::string token_key)
    : loop_(loop),
      config_(config),
      token_key_(std::move(token_key)),
      call_key_(config.insecure ? call_key(token_key_) : std::string()),
      coordinator_(config.coordinator),
      channels_(std::make_shared<PeerChannels>(open_with_certificate(config))),
      idle_timer_(loop) {}

ClusterClient::~ClusterClient() {
  for (const auto& known : logs_) {
    if (const auto logs = known.lock()) logs->cancel();
  }
}

Result<PeerChannels::Stub> ClusterClient::stub(const std::string& endpoint) {
  const bool is_first = channels_->size() == 0;
  auto made = channels_->stub(endpoint, SteadyClock().now());
  if (made && is_first) close_idle_later();
  return made;
}

void ClusterClient::close_idle_later() {
  idle_timer_.expires_after(kIdleChannel / 2);
  idle_timer_.async_wait(
      [this, channels = std::weak_ptr(channels_)](const boost::system::error_code& error) {
        if (error || channels.expired()) return;
        channels_->close_idle(SteadyClock().now());
        if (channels_->size() > 0) close_idle_later();
      });
}

std::string ClusterClient::sign(grpc::ClientContext& context, const std::string& endpoint) const {
  if (!call_key_.empty()) {
    const CallProof call =
        prove_call(call_key_, config_.node_id, call_address(endpoint), SteadyClock().now());
    context.AddMetadata(kNodeMetadata, call.node);
    context.AddMetadata(kNonceMetadata, call.nonce);
    context.AddMetadata(kToMetadata, call.to);
    context.AddMetadata(kSentMetadata, call.sent_at);
    context.AddMetadata(kProofMetadata, call.proof);
    return call.nonce;
  }
  if (token_key_.empty()) return {};
  const std::string nonce = random_bytes(kNonceBytes);
  context.AddMetadata(kNodeMetadata, config_.node_id);
  context.AddMetadata(kNonceMetadata, nonce);
  context.AddMetadata(kProofMetadata,
                      prove_token(token_key_, nonce, config_.node_id, kProofSubject));
  return {};
}

// What says only that nobody answers may come from anybody: there is nothing in it but to ask again.
grpc::Status ClusterClient::believed(const grpc::ClientContext& context,
                                     const std::string& nonce,
                                     const grpc::Status& status) const {
  switch (status.error_code()) {
    case grpc::StatusCode::UNAVAILABLE:
    case grpc::StatusCode::DEADLINE_EXCEEDED:
    case grpc::StatusCode::CANCELLED:
    case grpc::StatusCode::FAILED_PRECONDITION:
      return status;
    default:
      break;
  }
  if (nonce.empty()) return status;
  const auto& answer = context.GetServerInitialMetadata();
  const auto proof = answer.find(kAnswerMetadata);
  const bool is_proved =
      proof != answer.end() &&
      is_answer_proof(
          {proof->second.data(), proof->second.size()}, call_key_, nonce, config_.node_id);
  if (is_proved) return status;
  const std::string& said = status.error_message();
  return to_status(Error(ErrorCode::kAuthentication,
                         "the agent that answers did not prove the token of the cluster" +
                             (said.empty() ? "" : "; it says: " + said.substr(0, said.find('\n'))),
                         "give both agents the same token_file, and see who listens there"));
}

template <typename Request, typename Response, typename Begin>
void ClusterClient::call(const std::string& endpoint,
                         const Request& request,
                         Done<Response> done,
                         Begin begin,
                         std::chrono::seconds deadline) {
  struct Call {
    std::shared_ptr<v1::Cluster::Stub> stub;
    grpc::ClientContext context;
    Request request;
    Response response;
    std::string nonce;
  };
  auto to = stub(endpoint);
  if (!to) {
    asio::post(loop_, [done, error = to.error()] { done(error); });
    return;
  }
  auto made = std::make_shared<Call>();
  made->stub = *to;
  made->request = request;
  made->context.set_deadline(std::chrono::system_clock::now() + deadline);
  made->nonce = sign(made->context, endpoint);
  calls_.begin(made->context);
  begin(*made,
        [this, &context = made->context, made, endpoint, done = std::move(done)](
            const grpc::Status& ended) mutable {
          const grpc::Status status = believed(context, made->nonce, ended);
          calls_.end(context, [made = std::move(made), endpoint, done = std::move(done), status] {
            if (!status.ok()) return done(to_error(status, nobody_at(endpoint)));
            done(std::move(made->response));
          });
        });
}

void ClusterClient::submit(const v1::SubmitReq& request, Done<v1::Job> done) {
  call(coordinator_, request, std::move(done), [](auto& made, auto answer) {
    made.stub->async()->Submit(&made.context, &made.request, &made.response, std::move(answer));
  });
}

namespace {

constexpr auto kAskForJobs = [](auto& made, auto answer) {
  made.stub->async()->Jobs(&made.context, &made.request, &made.response, std::move(answer));
};

}  // namespace

void ClusterClient::jobs(const v1::JobsReq& request, Done<v1::JobList> done) {
  request.job().empty() ? next_page(request, std::make_shared<JobPages>(), std::move(done))
                        : call(coordinator_, request, std::move(done), kAskForJobs);
}

void ClusterClient::page_of_jobs(const v1::JobsReq& request, Done<v1::JobList> done) {
  call(coordinator_, request, std::move(done), kAskForJobs);
}

void ClusterClient::changes(const v1::ChangesReq& request, Done<v1::JobChanges> done) {
  call(
      coordinator_,
      request,
      std::move(done),
      [](auto& made, auto answer) {
        made.stub->async()->Changes(
            &made.context, &made.request, &made.response, std::move(answer));
      },
      kHoldForNews + kUnaryDeadline);
}

void ClusterClient::next_page(const v1::JobsReq& request,
                              const std::shared_ptr<JobPages>& pages,
                              Done<v1::JobList> done) {
  call<v1::JobsReq, v1::JobList>(
      coordinator_,
      request,
      [this, request, pages, done](Result<v1::JobList> page) {
        if (!page) return done(std::move(page));
        v1::JobsReq next = request;
        next.set_after(pages->take(*std::move(page)));
        next.after().empty() ? done(pages->list()) : next_page(next, pages, done);
      },
      kAskForJobs);
}

void ClusterClient::stop(const v1::StopPartsReq& request, Done<v1::Job> done) {
  call(coordinator_, request, std::move(done), [](auto& made, auto answer) {
    made.stub->async()->Stop(&made.context, &made.request, &made.response, std::move(answer));
  });
}

void ClusterClient::scale(const v1::ScalePartsReq& request, Done<v1::Job> done) {
  call(coordinator_, request, std::move(done), [](auto& made, auto answer) {
    made.stub->async()->Scale(&made.context, &made.request, &made.response, std::move(answer));
  });
}

void ClusterClient::ledger(const v1::JobRef& request, Done<v1::Ledger> done) {
  call(coordinator_, request, std::move(done), [](auto& made, auto answer) {
    made.stub->async()->JobLedger(&made.context, &made.request, &made.response, std::move(answer));
  });
}

void ClusterClient::signal(const std::string& endpoint,
                           const v1::PartSignalReq& request,
                           Done<v1::Done> done) {
  call(endpoint, request, std::move(done), [](auto& made, auto answer) {
    made.stub->async()->PartSignal(&made.context, &made.request, &made.response, std::move(answer));
  });
}

void ClusterClient::diagnose(const std::string& endpoint,
                             const v1::PartDiagReq& request,
                             Done<v1::DiagReport> done) {
  call(endpoint, request, std::move(done), [](auto& made, auto answer) {
    made.stub->async()->PartDiagnose(
        &made.context, &made.request, &made.response, std::move(answer));
  });
}

// ---- output ----

std::shared_ptr<ClusterClient::PartLogs> ClusterClient::logs(const std::string& endpoint,
                                                             const v1::PartLogsReq& request,
                                                             PartLogsHandlers handlers) {
  auto made = std::make_shared<PartLogs>(loop_, *this, std::move(handlers));
  auto to = stub(endpoint);
  if (!to) {
    asio::post(loop_, [made, error = to.error()] {
      made->is_over_ = true;
      made->handlers_.on_end({grpc::StatusCode::UNAVAILABLE, error.message()});
    });
    return made;
  }
  made->stub_ = *to;
  made->request_ = request;
  made->self_ = made;
  made->nonce_ = sign(made->context_, endpoint);
  std::erase_if(logs_, [](const auto& known) { return known.expired(); });
  logs_.push_back(made);
  calls_.begin(made->context_);
  made->stub_->async()->PartLogs(&made->context_, &made->request_, made.get());
  // The loop may start reads at any time while the hold is there.
  made->AddHold();
  made->StartRead(&made->chunk_);
  made->StartCall();
  return made;
}

void ClusterClient::PartLogs::next() {
  if (!is_over_) StartRead(&chunk_);
}

void ClusterClient::PartLogs::cancel() {
  handlers_ = {.on_chunk = [](v1::LogChunk) {}, .on_end = [](const grpc::Status&) {}};
  if (is_over_) return;
  is_over_ = true;
  context_.TryCancel();
  RemoveHold();
}

// What comes of somebody who has not proved the token is not looked at; OnDone says why.
void ClusterClient::PartLogs::OnReadDone(bool ok) {
  has_chunk_ |= ok;
  if (ok && !is_believed_) {
    is_believed_ = client_.believed(context_, nonce_, grpc::Status::OK).ok();
    if (!is_believed_) context_.TryCancel();
  }
  asio::post(loop_, [self = shared_from_this(), ok = ok && is_believed_] {
    if (self->is_over_) return;
    if (ok) return self->handlers_.on_chunk(std::move(self->chunk_));
    self->is_over_ = true;
    self->RemoveHold();
  });
}

void ClusterClient::PartLogs::OnDone(const grpc::Status& ended) {
  // One that was cancelled for want of a proof ends with that.
  const bool is_refused = has_chunk_ && !is_believed_;
  const grpc::Status status =
      client_.believed(context_, nonce_, is_refused ? grpc::Status::OK : ended);
  client_.calls_.end(context_, [self = std::move(self_), status] {
    self->is_over_ = true;
    self->handlers_.on_end(status);
  });
}

}  // namespace accel::agent
