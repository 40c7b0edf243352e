// When a coordinator's host leads, and what it does with requests when it does not.

#include "agent/rendezvous/coordinator_host.h"

#include <atomic>
#include <chrono>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <boost/asio/io_context.hpp>
#include <gtest/gtest.h>

#include "agent/rendezvous/job_wire.h"
#include "agent/rendezvous/session_client.h"
#include "agent/rendezvous/token_proof.h"
#include "tests/support/scratch_folder.h"

namespace accel::agent::coordinator_host_test {
namespace {

using namespace std::chrono_literals;

CoordinatorHostOptions quiet_options() {
  CoordinatorHostOptions options;
  options.authenticate = [](const CallIdentity&) {
    return Result<Caller>(Error(ErrorCode::kAuthentication, "nobody calls"));
  };
  options.report = [](const Report&) {};
  options.audit = [](const std::string&) {};
  return options;
}

StartJob start_of(const std::string& uuid) {
  StartJob request;
  request.request_id = uuid;
  request.job.job_uuid = uuid;
  request.job.job_id = uuid;
  return request;
}

class CoordinatorHostTest : public ::testing::Test {
 protected:
  void lead() { host_.lead({found(7, {}, SteadyClock().now()), nullptr, term_}); }

  boost::asio::io_context loop_;
  CoordinatorHost host_{loop_, quiet_options()};
  std::shared_ptr<LeadTerm> term_ = std::make_shared<LeadTerm>(SteadyClock().now() + 1h);
};

TEST_F(CoordinatorHostTest, WhileItsTermLastsItTakesJobs) {
  lead();

  host_.handle(start_of("one"));

  EXPECT_TRUE(host_.is_leading());
  EXPECT_EQ(host_.state().jobs.size(), 1U);
}

// What a process that was stopped for long meets first may be a request; nobody has told it yet that another one leads.
TEST_F(CoordinatorHostTest, Fault41AfterItsTermItDoesNotLeadThoughNobodyHasSaidSo) {
  lead();
  term_->end();

  EXPECT_FALSE(host_.is_leading());
  host_.handle(start_of("one"));
  EXPECT_TRUE(host_.state().jobs.empty());
}

TEST_F(CoordinatorHostTest, ItLeadsAgainWithTheNextReign) {
  lead();
  host_.follow({"10.0.0.1:29400", 8});
  EXPECT_FALSE(host_.is_leading());

  lead();

  EXPECT_TRUE(host_.is_leading());
}

// Of a job that outlives its leaders: whoever has heard of a later one says so with each message.
TEST(DeposedHost, AnAgentOfALaterLeaderDeposesItOnce) {
  boost::asio::io_context loop;
  std::vector<std::string> deposed_by;
  CoordinatorHostOptions options = quiet_options();
  options.deposed = [&](const std::string& why) { deposed_by.push_back(why); };
  CoordinatorHost host(loop, std::move(options));
  host.lead({found(7, {}, SteadyClock().now()), nullptr, nullptr});

  for (int i = 0; i < 2; ++i)
    host.handle(FromAgent{.connection = 1, .message = {.fence = {.leader_epoch = 8}}});

  EXPECT_FALSE(host.is_leading());
  EXPECT_EQ(deposed_by, std::vector<std::string>{"an agent follows leader epoch 8, this is 7"});
}

// The coordinator of a launcher cannot follow: its launcher hears of it, and ends.
TEST(DeposedHost, WithNobodyToFollowItOnlyReports) {
  boost::asio::io_context loop;
  std::vector<ReportKind> reported;
  CoordinatorHostOptions options = quiet_options();
  options.report = [&](const Report& report) { reported.push_back(report.kind); };
  CoordinatorHost host(loop, std::move(options));
  host.lead({found(7, {}, SteadyClock().now()), nullptr, nullptr});

  host.handle(FromAgent{.connection = 1, .message = {.fence = {.leader_epoch = 8}}});

  EXPECT_EQ(reported, std::vector{ReportKind::kOutdated});
  EXPECT_TRUE(host.state().is_outdated);
}

// A host behind a socket, and one who speaks to it.
class StrangerTest : public ::testing::Test {
 protected:
  StrangerTest() {
    CoordinatorHostOptions options = quiet_options();
    options.token_key = token_key("a token of the cluster");
    options.authenticate = [this](const CallIdentity&) {
      return Result<Caller>(Caller{.role = Role::kNode, .name = name_});
    };
    options.audit = [this](const std::string& line) { audited_ = line; };
    host_.emplace(loop_, std::move(options));
    grpc::ServerBuilder builder;
    builder.AddListeningPort(address_, grpc::InsecureServerCredentials());
    builder.RegisterService(&*host_);
    server_ = builder.BuildAndStart();
  }
  ~StrangerTest() override {
    bool is_closed = false;
    client_.close([&] { is_closed = true; });
    host_->close();
    run_until([&] { return is_closed; });
    // Its calls end on the loop, and are gone with the last word of gRPC there.
    std::atomic<bool> is_shut = false;
    const std::jthread closer([&] {
      server_->Shutdown();
      is_shut = true;
    });
    run_until([&] { return is_shut.load(); });
    loop_.restart();
    loop_.poll();
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

  void say_hello() {
    v1::AgentMsg hello;
    hello.mutable_fence()->set_leader_epoch(2);
    hello.mutable_fence()->set_session_id("s");
    hello.mutable_hello()->mutable_node()->set_node_id("n1");
    hello.mutable_hello()->mutable_node()->set_hostname("n1");
    client_.send(std::move(hello));
  }

  const test::ScratchFolder folder_;
  const std::string address_ = "unix:" + folder_.file("socket");
  std::string name_ = "somebody";
  std::string audited_;
  std::optional<grpc::Status> closed_;
  boost::asio::io_context loop_{1};
  std::optional<CoordinatorHost> host_;
  std::unique_ptr<grpc::Server> server_;
  SessionClient client_{loop_,
                        grpc::CreateChannel(address_, grpc::InsecureChannelCredentials()),
                        {.on_open = [this] { say_hello(); },
                         .on_message = [](const v1::CoordMsg&) {},
                         .on_closed = [this](const grpc::Status& status) { closed_ = status; }}};
};

TEST_F(StrangerTest, WhoHasNotProvedTheTokenDoesNotDeposeTheCoordinator) {
  client_.connect();
  run_until([this] { return closed_.has_value(); });

  EXPECT_FALSE(host_->state().is_outdated);
  EXPECT_EQ(closed_->error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_EQ(closed_->error_message(),
            "node 'n1' follows leader epoch 2, this is 1, and proved no token");
  EXPECT_EQ(audited_, "refused somebody: " + closed_->error_message());
}

TEST_F(StrangerTest, ANodeWithACertificateDoes) {
  name_ = "accel://cluster/node/n1";

  client_.connect();

  run_until([this] { return host_->state().is_outdated; });
}

// A host behind a socket that looks for nodes for a job, and a node that sees each message as it comes.
class SpecTest : public ::testing::Test {
 protected:
  SpecTest() {
    CoordinatorHostOptions options = quiet_options();
    options.authenticate = [](const CallIdentity&) {
      return Result<Caller>(Caller{.role = Role::kNode, .name = "a node"});
    };
    host_.emplace(loop_, std::move(options));
    grpc::ServerBuilder builder;
    builder.AddListeningPort(address_, grpc::InsecureServerCredentials());
    builder.RegisterService(&*host_);
    server_ = builder.BuildAndStart();
  }
  ~SpecTest() override {
    bool is_closed = false;
    client_.close([&] { is_closed = true; });
    host_->close();
    run_until([&] { return is_closed; });
    std::atomic<bool> is_shut = false;
    const std::jthread closer([&] {
      server_->Shutdown();
      is_shut = true;
    });
    run_until([&] { return is_shut.load(); });
    loop_.restart();
    loop_.poll();
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

  void start_job(int nodes) {
    v1::JobSpec spec;
    spec.set_job_id("job");
    spec.set_job_uuid("job");
    spec.set_min_nodes(static_cast<std::uint32_t>(nodes));
    spec.set_max_nodes(static_cast<std::uint32_t>(nodes));
    spec.add_argv("train");
    JobDescription job = describe_job(spec);
    job.recruits = true;
    host_->handle(StartJob{.request_id = "1", .job = std::move(job)});
  }

  v1::AgentMsg message(std::uint64_t seq) const {
    v1::AgentMsg out;
    out.mutable_fence()->set_leader_epoch(1);
    out.mutable_fence()->set_session_id(session_);
    out.mutable_fence()->set_seq(seq);
    return out;
  }
  void say_hello() {
    v1::AgentMsg hello = message(0);
    hello.mutable_hello()->mutable_v()->set_proto_min(1);
    hello.mutable_hello()->mutable_v()->set_proto_max(protocol_max_);
    hello.mutable_hello()->mutable_node()->set_node_id("n1");
    hello.mutable_hello()->mutable_node()->set_hostname("n1");
    client_.send(std::move(hello));
  }
  void join() {
    v1::AgentMsg out = message(1);
    out.mutable_join()->set_job_uuid("job");
    client_.send(std::move(out));
  }

  const test::ScratchFolder folder_;
  const std::string address_ = "unix:" + folder_.file("socket");
  std::string session_ = "s";
  std::uint32_t protocol_max_ = kProtocolMax;
  std::vector<v1::Invite> invites_;
  std::vector<v1::Assign> assigns_;
  boost::asio::io_context loop_{1};
  std::optional<CoordinatorHost> host_;
  std::unique_ptr<grpc::Server> server_;
  SessionClient client_{loop_,
                        grpc::CreateChannel(address_, grpc::InsecureChannelCredentials()),
                        {.on_open = [this] { say_hello(); },
                         .on_message =
                             [this](v1::CoordMsg& message) {
                               if (message.has_invite()) invites_.push_back(message.invite());
                               if (message.has_assign()) assigns_.push_back(message.assign());
                             },
                         .on_closed = [](const grpc::Status&) {}}};
};

TEST_F(SpecTest, ASpecCrossesASessionOnceAndGoesByItsDigestAfterThat) {
  start_job(1);
  client_.connect();
  run_until([this] { return !invites_.empty(); });
  join();
  run_until([this] { return !assigns_.empty(); });

  EXPECT_EQ(invites_[0].spec().argv(0), "train");
  EXPECT_EQ(invites_[0].spec_sha256().size(), 32U);
  EXPECT_EQ(assigns_[0].spec_sha256(), invites_[0].spec_sha256());
  EXPECT_FALSE(assigns_[0].has_spec());
}

TEST_F(SpecTest, ANodeOfAnOlderBuildGetsTheWholeSpecEachTime) {
  protocol_max_ = 1;
  start_job(1);
  client_.connect();
  run_until([this] { return !invites_.empty(); });
  join();
  run_until([this] { return !assigns_.empty(); });

  EXPECT_EQ(invites_[0].spec().argv(0), "train");
  EXPECT_EQ(assigns_[0].spec().argv(0), "train");
  EXPECT_TRUE(assigns_[0].spec_sha256().empty());
}

TEST_F(SpecTest, AnAgentThatBeganAnewIsSentTheWholeSpecAgain) {
  start_job(2);
  client_.connect();
  run_until([this] { return !invites_.empty(); });
  join();
  run_until([this] { return host_->state().jobs.at("job").joined.size() == 1; });
  invites_.clear();
  session_ = "another";

  client_.reset();

  run_until([this] { return !invites_.empty(); });
  EXPECT_EQ(invites_[0].spec().argv(0), "train");
}

}  // namespace
}  // namespace accel::agent::coordinator_host_test
