// Whom a node believes that it is the coordinator.

#include "agent/rendezvous/member_session.h"

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <boost/asio/io_context.hpp>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "agent/access/ticket_book.h"
#include "agent/rendezvous/token_proof.h"
#include "tests/support/scratch_folder.h"

namespace accel::agent::member_session_test {
namespace {

using namespace std::chrono_literals;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr const char* kNode = "n1";
constexpr const char* kJob = "job";

// Answers each Hello with one message, and keeps what comes then.
class Answerer final : public v1::Rendezvous::Service {
 public:
  using Answer = std::function<v1::CoordMsg(const v1::AgentMsg& hello)>;
  Answerer(const std::string& address, Answer answer) : answer_(std::move(answer)) {
    grpc::ServerBuilder builder;
    builder.AddListeningPort(address, grpc::InsecureServerCredentials());
    builder.RegisterService(this);
    server_ = builder.BuildAndStart();
  }
  ~Answerer() override { server_->Shutdown(std::chrono::system_clock::now()); }

  grpc::Status Session(grpc::ServerContext*,
                       grpc::ServerReaderWriter<v1::CoordMsg, v1::AgentMsg>* stream) override {
    v1::AgentMsg message;
    if (!stream->Read(&message)) return grpc::Status::OK;
    v1::CoordMsg answer = answer_(message);
    answer.mutable_fence()->set_leader_epoch(1);
    answer.mutable_fence()->set_session_id(message.fence().session_id());
    stream->Write(answer);
    while (stream->Read(&message)) {
      const std::lock_guard lock(mutex_);
      if (message.has_join()) join_ = message.join();
    }
    return grpc::Status::OK;
  }

  [[nodiscard]] std::optional<v1::Join> join() const {
    const std::lock_guard lock(mutex_);
    return join_;
  }

 private:
  const Answer answer_;
  mutable std::mutex mutex_;
  std::optional<v1::Join> join_;
  std::unique_ptr<grpc::Server> server_;
};

class MemberSessionTest : public ::testing::Test {
 protected:
  ~MemberSessionTest() override {
    if (!session_) return;
    bool is_closed = false;
    session_->close([&] { is_closed = true; });
    run_until([&] { return is_closed; });
  }

  // A node with a token that wants to take part in the job.
  void join_at(const std::string& address) {
    MemberSessionOptions options;
    options.node.node_id = kNode;
    options.node.hostname = kNode;
    options.token_key = key_;
    MemberSession::Handlers handlers;
    handlers.on_action = [this](const MemberAction& action) { actions_.push_back(action); };
    handlers.on_beat = [] {};
    handlers.on_connection = [this](bool is_connected, const std::string&) {
      was_connected_ = was_connected_ || is_connected;
    };
    handlers.on_turned_away = [](const std::string&) {};
    handlers.on_refused = [this](const std::string& why) { refused_ = why; };
    session_.emplace(loop_,
                     grpc::CreateChannel(address, grpc::InsecureChannelCredentials()),
                     std::move(options),
                     std::move(handlers));
    session_->handle(WantJob{Join{.job_uuid = kJob, .slots = 1}});
    session_->connect();
  }

  template <typename Condition>
  void run_until(Condition condition) {
    const auto end = std::chrono::steady_clock::now() + 30s;
    while (!condition() && std::chrono::steady_clock::now() < end) {
      loop_.restart();
      loop_.run_one_for(20ms);
    }
    EXPECT_TRUE(condition());
  }

  void expect_that_it_is_not_believed(Answerer::Answer answer, const std::string& why) {
    const Answerer poser(address_, std::move(answer));
    join_at(address_);

    run_until([this] { return refused_.has_value(); });

    EXPECT_THAT(*refused_, HasSubstr("the coordinator did not prove the token of the job: " + why));
    EXPECT_FALSE(was_connected_);
    EXPECT_THAT(actions_, IsEmpty());
    EXPECT_FALSE(poser.join()) << "a poser gets no proof of ours";
  }

  static v1::CoordMsg welcome() {
    v1::CoordMsg message;
    message.mutable_welcome()->set_nonce(random_bytes(kNonceBytes));
    message.mutable_welcome()->mutable_beat_every()->set_seconds(1);
    return message;
  }
  static v1::CoordMsg proved(v1::CoordMsg message,
                             const std::string& key,
                             const std::string& nonce) {
    message.set_token_proof(prove_coordinator(key, nonce, kNode));
    return message;
  }

  const test::ScratchFolder folder_;
  const std::string address_ = "unix:" + folder_.file("socket");
  const std::string key_ = token_key("a token of the cluster");
  boost::asio::io_context loop_{1};
  std::vector<MemberAction> actions_;
  std::optional<std::string> refused_;
  bool was_connected_ = false;
  std::optional<MemberSession> session_;
};

TEST_F(MemberSessionTest, ACoordinatorThatKnowsTheTokenIsBelievedAndGetsOurProof) {
  const v1::CoordMsg answer = welcome();
  const Answerer coordinator(address_, [&](const v1::AgentMsg& hello) {
    return proved(answer, key_, hello.hello().nonce());
  });

  join_at(address_);
  run_until([&] { return coordinator.join().has_value(); });

  EXPECT_TRUE(was_connected_);
  ASSERT_TRUE(coordinator.join());
  EXPECT_TRUE(
      is_proof(coordinator.join()->token_proof(), key_, answer.welcome().nonce(), kNode, kJob));
}

TEST_F(MemberSessionTest, Fault61OneThatProvesNothingIsNot) {
  expect_that_it_is_not_believed([](const v1::AgentMsg&) { return welcome(); }, "it has none");
}

TEST_F(MemberSessionTest, Fault61OneWithAnotherTokenIsNot) {
  expect_that_it_is_not_believed(
      [](const v1::AgentMsg& hello) {
        return proved(welcome(), token_key("another token"), hello.hello().nonce());
      },
      "it has another one");
}

TEST_F(MemberSessionTest, Fault61TheProofOfAnotherConnectionIsWorthNothing) {
  expect_that_it_is_not_believed(
      [this](const v1::AgentMsg&) { return proved(welcome(), key_, random_bytes(kNonceBytes)); },
      "it has another one");
}

TEST_F(MemberSessionTest, Fault61ANodesProofDoesNotServeAsOneOfACoordinator) {
  expect_that_it_is_not_believed(
      [this](const v1::AgentMsg& hello) {
        v1::CoordMsg message = welcome();
        message.set_token_proof(prove_token(key_, hello.hello().nonce(), kNode, kJob));
        return message;
      },
      "it has another one");
}

TEST_F(MemberSessionTest, Fault61AWordToStopDoesNothingBeforeTheProof) {
  expect_that_it_is_not_believed(
      [](const v1::AgentMsg&) {
        v1::CoordMsg message;
        message.mutable_stop()->set_job_uuid(kJob);
        message.mutable_stop()->set_kill(true);
        return message;
      },
      "it has none");
}

TEST_F(MemberSessionTest, Fault61NorDoesAnInvitation) {
  expect_that_it_is_not_believed(
      [](const v1::AgentMsg&) {
        v1::CoordMsg message;
        message.mutable_invite()->mutable_spec()->set_job_uuid("another");
        return message;
      },
      "it has none");
}

TEST_F(MemberSessionTest, WhatARefusalSaysIsToldThoughNobodyProvedIt) {
  expect_that_it_is_not_believed(
      [](const v1::AgentMsg&) {
        v1::CoordMsg message;
        message.mutable_refused()->set_message("no common protocol version");
        return message;
      },
      "it has none, or is of another version of accel; it refuses this node: no common protocol");
}

// Whoever could choose what our proof is made of might make it one of its own.
TEST_F(MemberSessionTest, Fault61ANonceOfAnotherLengthGetsNoProof) {
  std::atomic<int> num_answers = 0;
  const Answerer coordinator(address_, [&](const v1::AgentMsg& hello) {
    v1::CoordMsg message;
    message.mutable_welcome()->set_nonce(std::string("coordinator\0", 12) + hello.hello().nonce());
    ++num_answers;
    return proved(message, key_, hello.hello().nonce());
  });
  join_at(address_);

  run_until([&] { return num_answers == 2; });

  EXPECT_FALSE(was_connected_);
  EXPECT_FALSE(coordinator.join());
}

}  // namespace
}  // namespace accel::agent::member_session_test
