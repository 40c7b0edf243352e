// The coordinator beside an agent's loop that stands still: as under any flood of calls, in its worst case.

#include "agent/cluster/cluster_part.h"

#include <chrono>
#include <cstdint>
#include <future>
#include <memory>
#include <string>
#include <thread>

#include <boost/asio/io_context.hpp>
#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <sys/stat.h>
#include <unistd.h>

#include "accel/v1/cluster.grpc.pb.h"
#include "accel/v1/rendezvous.grpc.pb.h"
#include "agent/calls/grpc_server.h"
#include "agent/rendezvous/wire.h"
#include "tests/support/scratch_folder.h"

namespace accel::agent::cluster_part_test {
namespace {

using namespace std::chrono_literals;

constexpr auto kPatience = 60s;

class ClusterPartTest : public testing::Test {
 protected:
  void SetUp() override {
    config_.node_id = "host";
    config_.state_dir = folder_.path();
    config_.listen = config_.coordinator = "127.0.0.1:0";
    config_.insecure = true;
    auto part = ClusterPart::make({.loop = loop_,
                                   .config = config_,
                                   .users = users_,
                                   .files = files_,
                                   .jobs = jobs_,
                                   .log = [this](const std::string& line) { log_ += line + "\n"; },
                                   .audit = [](const std::string&) {},
                                   .audit_refusal = [](const std::string&) {},
                                   .on_ended = [] {},
                                   .agent_uid = ::geteuid()});
    ASSERT_TRUE(part) << part.error().render();
    part_ = *std::move(part);
    auto server = GrpcServer::start(config_, "", part_->services());
    ASSERT_TRUE(server) << server.error().render();
    server_ = *std::move(server);
    channel_ = grpc::CreateChannel("127.0.0.1:" + std::to_string(server_->tcp_port()),
                                   grpc::InsecureChannelCredentials());
  }

  void TearDown() override {
    bool is_closed = false;
    part_->close([&] { is_closed = true; });
    while (!is_closed) {
      loop_.restart();
      loop_.run_one_for(20ms);
    }
    server_->shutdown();
  }

  static void limit(grpc::ClientContext& context) {
    context.set_deadline(std::chrono::system_clock::now() + kPatience);
  }

  static v1::AgentMsg message(decltype(AgentMessage::body) body, std::uint64_t leader_epoch = 0) {
    return to_proto(AgentMessage{.fence = {.leader_epoch = leader_epoch, .session_id = "s"},
                                 .mono = std::chrono::nanoseconds(77),
                                 .body = std::move(body)});
  }

  Liveness liveness_of(const NodeId& id) {
    std::promise<Liveness> told;
    part_->look_at_host(
        [&](const CoordinatorHost& host) { told.set_value(host.state().nodes.at(id).liveness); });
    return told.get_future().get();
  }

  const test::ScratchFolder folder_;
  AgentConfig config_;
  boost::asio::io_context loop_{1};  // nobody runs it before the end
  UserDirectory users_{loop_};
  FileReaders files_{loop_};
  JobRunner jobs_{loop_, {}, [](const v1::Job&) {}};
  std::string log_;
  std::unique_ptr<ClusterPart> part_;
  std::unique_ptr<GrpcServer> server_;
  std::shared_ptr<grpc::Channel> channel_;
};

TEST_F(ClusterPartTest, Fault64TheCoordinatorHearsNodesAndTicksWhileTheAgentsLoopStandsStill) {
  const auto rendezvous = v1::Rendezvous::NewStub(channel_);
  grpc::ClientContext session;
  limit(session);
  const auto stream = rendezvous->Session(&session);
  v1::CoordMsg heard;
  NodeInfo node;
  node.node_id = "n1";
  node.hostname = "n1";
  ASSERT_TRUE(stream->Write(message(Hello{.build = "b", .node = node, .running = {}})));
  ASSERT_TRUE(stream->Read(&heard));
  EXPECT_TRUE(heard.has_welcome()) << heard.ShortDebugString();
  ASSERT_TRUE(stream->Write(message(Beat{}, heard.fence().leader_epoch())));
  ASSERT_TRUE(stream->Read(&heard));
  EXPECT_TRUE(heard.has_beat_ack()) << heard.ShortDebugString();
  EXPECT_EQ(liveness_of("n1"), Liveness::kLive);

  // A node that is gone is found by ticks alone.
  session.TryCancel();
  (void)stream->Finish();
  const auto give_up_at = std::chrono::steady_clock::now() + kPatience;
  while (liveness_of("n1") != Liveness::kLost && std::chrono::steady_clock::now() < give_up_at)
    std::this_thread::yield();
  EXPECT_EQ(liveness_of("n1"), Liveness::kLost);
  EXPECT_THAT(log_, testing::Not(testing::HasSubstr("n1")));  // it was said to nobody yet
}

TEST_F(ClusterPartTest, Fault64OtherAgentsAreAnsweredWhileTheAgentsLoopStandsStill) {
  grpc::ClientContext context;
  limit(context);
  v1::JobList list;
  const auto status = v1::Cluster::NewStub(channel_)->Jobs(&context, {}, &list);
  EXPECT_TRUE(status.ok()) << status.error_message();
}

TEST_F(ClusterPartTest, WhatTheCoordinatorReportsIsSaidOnTheAgentsLoop) {
  grpc::ClientContext session;
  limit(session);
  const auto stream = v1::Rendezvous::NewStub(channel_)->Session(&session);
  NodeInfo node;
  node.node_id = "n1";
  node.hostname = "n1";
  v1::CoordMsg heard;
  ASSERT_TRUE(stream->Write(message(Hello{.build = "b", .node = node, .running = {}})));
  ASSERT_TRUE(stream->Read(&heard));
  session.TryCancel();
  (void)stream->Finish();

  (void)liveness_of("n1");
  loop_.poll();

  EXPECT_THAT(log_, testing::HasSubstr("coordinator: node n1: connected"));
}

}  // namespace
}  // namespace accel::agent::cluster_part_test
