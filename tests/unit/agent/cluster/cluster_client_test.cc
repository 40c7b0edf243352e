// What an agent asks others, when it ends before they have answered.

#include "agent/cluster/cluster_client.h"

#include <memory>
#include <thread>

#include <gtest/gtest.h>

#include "tests/support/scratch_folder.h"

namespace accel::agent::cluster_client_test {
namespace {

// Says nothing until a call is cancelled.
class SilentAgent final : public v1::Cluster::Service {
 public:
  grpc::Status Jobs(grpc::ServerContext* context, const v1::JobsReq*, v1::JobList*) override {
    return be_silent(*context);
  }
  grpc::Status PartLogs(grpc::ServerContext* context,
                        const v1::PartLogsReq*,
                        grpc::ServerWriter<v1::LogChunk>*) override {
    return be_silent(*context);
  }

 private:
  static grpc::Status be_silent(const grpc::ServerContext& context) {
    while (!context.IsCancelled()) std::this_thread::yield();
    return grpc::Status::CANCELLED;
  }
};

class ClusterClientTest : public ::testing::Test {
 protected:
  ClusterClientTest() {
    config_.insecure = true;
    config_.coordinator = "unix:" + folder_.file("socket");
    grpc::ServerBuilder builder;
    builder.AddListeningPort(config_.coordinator, grpc::InsecureServerCredentials());
    builder.RegisterService(&agent_);
    server_ = builder.BuildAndStart();
    client_ = std::make_unique<ClusterClient>(loop_, config_, "");
  }

  const test::ScratchFolder folder_;
  AgentConfig config_;
  SilentAgent agent_;
  std::unique_ptr<grpc::Server> server_;
  boost::asio::io_context loop_{1};
  std::unique_ptr<ClusterClient> client_;
};

TEST_F(ClusterClientTest, ItsEndCancelsACallAndTheLoopHearsNothingAfterIt) {
  int num_errors = 0;
  client_->jobs({}, [&](const Result<v1::JobList>& jobs) { num_errors += jobs ? 0 : 1; });

  client_.reset();

  loop_.poll();
  EXPECT_EQ(num_errors, 1);
}

TEST_F(ClusterClientTest, ItsEndCancelsLogsAndNobodyKeepsThem) {
  std::weak_ptr<ClusterClient::PartLogs> logs =
      client_->logs(config_.coordinator,
                    {},
                    {.on_chunk = [](const v1::LogChunk&) { ADD_FAILURE() << "something came"; },
                     .on_end = [](const grpc::Status&) { ADD_FAILURE() << "the end was told"; }});

  client_.reset();

  loop_.poll();
  EXPECT_TRUE(logs.expired());
}

}  // namespace
}  // namespace accel::agent::cluster_client_test
