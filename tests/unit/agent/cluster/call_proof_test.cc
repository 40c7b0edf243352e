// Calls between agents without TLS: who replays one is refused, and who only took the address is not believed.

#include "agent/cluster/call_proof.h"

#include <future>
#include <memory>
#include <string>
#include <thread>

#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include "agent/cluster/cluster_client.h"
#include "agent/cluster/cluster_service.h"
#include "agent/rendezvous/token_proof.h"

namespace accel::agent::call_proof_test {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr const char* kHere = "127.0.0.1:29400";

class CallNoncesTest : public ::testing::Test {
 protected:
  [[nodiscard]] std::string refusal(const CallProof& call, TimePoint now) {
    const auto admitted = nonces_.admit(call, now);
    return admitted ? "" : admitted.error().message();
  }

  const std::string key_ = call_key(token_key("a token of the cluster"));
  const TimePoint begun_at_{std::chrono::hours(1)};
  const TimePoint now_ = begun_at_ + std::chrono::seconds(1);
  CallNonces nonces_{key_, kHere, begun_at_};
};

TEST_F(CallNoncesTest, ACallIsTakenOnce) {
  const CallProof call = prove_call(key_, "a", kHere, now_);

  EXPECT_EQ(refusal(call, now_), "");
  EXPECT_THAT(refusal(call, now_), HasSubstr("heard before"));
  EXPECT_EQ(refusal(prove_call(key_, "a", kHere, now_), now_), "");
}

TEST_F(CallNoncesTest, NothingOfAProofMayBeChanged) {
  const CallProof call = prove_call(key_, "a", kHere, now_);
  CallProof changed = call;
  changed.node = "b";
  EXPECT_THAT(refusal(changed, now_), HasSubstr("its proof is none"));
  changed = call;
  changed.sent_at = std::to_string(begun_at_.time_since_epoch().count());
  EXPECT_THAT(refusal(changed, now_), HasSubstr("its proof is none"));
  changed = call;
  changed.nonce = std::string(kNonceBytes, 'x');
  EXPECT_THAT(refusal(changed, now_), HasSubstr("its proof is none"));
  EXPECT_THAT(refusal({}, now_), HasSubstr("its proof is none"));
  EXPECT_EQ(refusal(call, now_), "");
}

TEST_F(CallNoncesTest, AnotherTokenIsNone) {
  const std::string other = call_key(token_key("another token of a cluster"));

  EXPECT_THAT(refusal(prove_call(other, "a", kHere, now_), now_), HasSubstr("its proof is none"));
}

TEST_F(CallNoncesTest, AProofForAnotherAgentIsRefused) {
  EXPECT_THAT(refusal(prove_call(key_, "a", "127.0.0.1:29401", now_), now_),
              HasSubstr("its proof is for 127.0.0.1:29401, this is 127.0.0.1:29400"));
}

TEST_F(CallNoncesTest, WithoutAPortOfItsOwnTheAddressCounts) {
  CallNonces any(key_, "127.0.0.1:0", begun_at_);

  EXPECT_TRUE(any.admit(prove_call(key_, "a", kHere, now_), now_));
  EXPECT_FALSE(any.admit(prove_call(key_, "a", "127.0.0.2:29400", now_), now_));
}

TEST_F(CallNoncesTest, AProofIsGoodForTheWindowAndItsNonceIsKeptAsLong) {
  const CallProof call = prove_call(key_, "a", kHere, now_);

  EXPECT_EQ(refusal(call, now_ + CallNonces::kWindow), "");
  EXPECT_THAT(refusal(call, now_ + CallNonces::kWindow), HasSubstr("heard before"));
  EXPECT_THAT(refusal(call, now_ + CallNonces::kWindow + std::chrono::nanoseconds(1)),
              HasSubstr("not of the last 30 s"));
  EXPECT_THAT(refusal(prove_call(key_, "a", kHere, now_), now_ - std::chrono::nanoseconds(1)),
              HasSubstr("not of the last 30 s"));
}

TEST_F(CallNoncesTest, WhatWasSentBeforeTheAgentBeganIsToBeSentAgain) {
  const CallProof early = prove_call(key_, "a", kHere, begun_at_ - std::chrono::nanoseconds(1));

  const auto admitted = nonces_.admit(early, now_);

  ASSERT_FALSE(admitted);
  EXPECT_EQ(admitted.error().code(), ErrorCode::kCoordinatorLost);
}

TEST_F(CallNoncesTest, TheNoncesAreBoundedAndThoseOfBeforeMakeRoom) {
  for (std::size_t i = 0; i < CallNonces::kMost; ++i)
    ASSERT_TRUE(nonces_.admit(prove_call(key_, "a", kHere, now_), now_));

  EXPECT_THAT(refusal(prove_call(key_, "a", kHere, now_), now_), HasSubstr("65536 calls"));
  const TimePoint later = now_ + CallNonces::kWindow + std::chrono::nanoseconds(1);
  EXPECT_EQ(refusal(prove_call(key_, "a", kHere, later), later), "");
}

TEST_F(CallNoncesTest, AnAnswerIsProvedForItsNonceAndItsNode) {
  const std::string proof = prove_answer(key_, "nonce", "a");

  EXPECT_TRUE(is_answer_proof(proof, key_, "nonce", "a"));
  EXPECT_FALSE(is_answer_proof(proof, key_, "another", "a"));
  EXPECT_FALSE(is_answer_proof(proof, key_, "nonce", "b"));
  EXPECT_FALSE(is_answer_proof("", key_, "nonce", "a"));
}

// ---- over sockets ----

// Has the address of an agent, and no token. Keeps the proof that it was given.
class FalseAgent final : public v1::Cluster::Service {
 public:
  grpc::Status Jobs(grpc::ServerContext*, const v1::JobsReq*, v1::JobList* list) override {
    list->add_jobs()->set_job_uuid("made up");
    return grpc::Status::OK;
  }
  grpc::Status Stop(grpc::ServerContext*, const v1::StopPartsReq*, v1::Job*) override {
    return {grpc::StatusCode::NOT_FOUND, "there is no such job"};
  }
  grpc::Status PartLogs(grpc::ServerContext*,
                        const v1::PartLogsReq*,
                        grpc::ServerWriter<v1::LogChunk>* writer) override {
    v1::LogChunk chunk;
    chunk.set_data("made up");
    writer->Write(chunk);
    return grpc::Status::OK;
  }
};

class ClusterCalls : public ::testing::Test {
 protected:
  ClusterCalls() {
    config_.node_id = "a";
    config_.insecure = true;
    config_.listen = "127.0.0.1:0";
  }
  ~ClusterCalls() override {
    if (server_) server_->Shutdown();
    if (client_) on_loop([this] { client_.reset(); });
    guard_.reset();
    thread_.join();
  }

  void serve(grpc::Service& service) {
    grpc::ServerBuilder builder;
    int port = 0;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
    builder.RegisterService(&service);
    server_ = builder.BuildAndStart();
    config_.coordinator = "127.0.0.1:" + std::to_string(port);
  }
  void serve_agent() {
    agent_ = std::make_unique<ClusterService>(
        ClusterService::Parts{.loop = loop_,
                              .coordinator_loop = loop_,
                              .config = config_,
                              .token_key = key_,
                              .files = files_,
                              .audit = [](const std::string&) {},
                              .audit_refusal = [](const std::string&) {},
                              .agent_uid = ::geteuid()});
    serve(*agent_);
  }
  void connect(const std::string& key) {
    on_loop([&] { client_ = std::make_unique<ClusterClient>(loop_, config_, key); });
  }

  template <typename Deed>
  void on_loop(Deed deed) {
    std::promise<void> done;
    boost::asio::post(loop_, [&] {
      deed();
      done.set_value();
    });
    done.get_future().get();
  }

  Result<v1::JobList> ask() {
    std::promise<Result<v1::JobList>> told;
    on_loop([&] {
      v1::JobsReq request;
      request.set_job("j");
      client_->jobs(request, [&](Result<v1::JobList> list) { told.set_value(std::move(list)); });
    });
    return told.get_future().get();
  }

  const std::string key_ = token_key("a token of the cluster");
  AgentConfig config_;
  boost::asio::io_context loop_{1};
  boost::asio::executor_work_guard<boost::asio::io_context::executor_type> guard_{
      loop_.get_executor()};
  FileReaders files_{loop_};
  FalseAgent false_agent_;
  std::unique_ptr<ClusterService> agent_;
  std::unique_ptr<grpc::Server> server_;
  std::unique_ptr<ClusterClient> client_;
  std::thread thread_{[this] { loop_.run(); }};
};

TEST_F(ClusterCalls, AnAgentWithTheTokenIsBelieved) {
  serve_agent();
  connect(key_);

  const auto list = ask();

  // Its own words: no stranger could have said them.
  ASSERT_FALSE(list);
  EXPECT_EQ(list.error().code(), ErrorCode::kAgentRefused);
  EXPECT_THAT(list.error().message(), HasSubstr("does not host the coordinator"));
}

TEST_F(ClusterCalls, ACallThatIsReplayedIsRefused) {
  serve_agent();
  const auto stub = v1::Cluster::NewStub(
      grpc::CreateChannel(config_.coordinator, grpc::InsecureChannelCredentials()));
  const CallProof proof = prove_call(call_key(key_), "a", config_.coordinator, SteadyClock().now());
  const auto call = [&] {
    grpc::ClientContext context;
    context.AddMetadata(kNodeMetadata, proof.node);
    context.AddMetadata(kNonceMetadata, proof.nonce);
    context.AddMetadata(kToMetadata, proof.to);
    context.AddMetadata(kSentMetadata, proof.sent_at);
    context.AddMetadata(kProofMetadata, proof.proof);
    v1::JobList list;
    return stub->Jobs(&context, {}, &list);
  };

  EXPECT_EQ(call().error_code(), grpc::StatusCode::PERMISSION_DENIED);
  const grpc::Status again = call();

  EXPECT_EQ(again.error_code(), grpc::StatusCode::UNAUTHENTICATED);
  EXPECT_THAT(again.error_message(), HasSubstr("heard before"));
}

TEST_F(ClusterCalls, AnAgentWithAnotherTokenIsRefusedAndSaysWhy) {
  serve_agent();
  connect(token_key("another token of a cluster"));

  const auto list = ask();

  ASSERT_FALSE(list);
  EXPECT_EQ(list.error().code(), ErrorCode::kAuthentication);
  EXPECT_THAT(list.error().message(), HasSubstr("did not prove the token of the cluster"));
}

TEST_F(ClusterCalls, NothingIsTakenOfAFalseAgent) {
  serve(false_agent_);
  connect(key_);

  const auto list = ask();

  ASSERT_FALSE(list);
  EXPECT_EQ(list.error().code(), ErrorCode::kAuthentication);
}

TEST_F(ClusterCalls, ARefusalOfAFalseAgentIsNotTakenForOne) {
  serve(false_agent_);
  connect(key_);

  std::promise<Result<v1::Job>> told;
  on_loop([&] { client_->stop({}, [&](Result<v1::Job> job) { told.set_value(std::move(job)); }); });
  const auto stopped = told.get_future().get();

  ASSERT_FALSE(stopped);
  EXPECT_EQ(stopped.error().code(), ErrorCode::kAuthentication);
  EXPECT_THAT(stopped.error().message(), HasSubstr("it says: there is no such job"));
}

TEST_F(ClusterCalls, NoOutputOfAFalseAgentIsShown) {
  serve(false_agent_);
  connect(key_);
  std::string shown;
  std::promise<grpc::Status> ended;
  std::shared_ptr<ClusterClient::PartLogs> logs;
  on_loop([&] {
    logs = client_->logs(config_.coordinator,
                         {},
                         {.on_chunk = [&](const v1::LogChunk& chunk) { shown += chunk.data(); },
                          .on_end = [&](const grpc::Status& status) { ended.set_value(status); }});
  });
  const grpc::Status status = ended.get_future().get();

  EXPECT_EQ(status.error_code(), grpc::StatusCode::UNAUTHENTICATED);
  EXPECT_THAT(shown, IsEmpty());
  on_loop([&] { logs.reset(); });
}

}  // namespace
}  // namespace accel::agent::call_proof_test
