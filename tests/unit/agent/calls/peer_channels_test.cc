// How many connections and threads an agent has for those that it asks.

#include "agent/calls/peer_channels.h"

#include <filesystem>
#include <iterator>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "agent/tls/tls_authority.h"
#include "tests/support/scratch_folder.h"

namespace accel::agent::peer_channels_test {
namespace {

using namespace std::chrono_literals;

// Makes channels to nowhere, and knows which of them are still there.
class PeerChannelsTest : public ::testing::Test {
 protected:
  [[nodiscard]] int num_open() const {
    int count = 0;
    for (const auto& channel : opened_) count += channel.expired() ? 0 : 1;
    return count;
  }

  std::vector<std::weak_ptr<grpc::Channel>> opened_;
  PeerChannels channels_{[this](const std::string& endpoint) {
    auto channel = grpc::CreateChannel(endpoint, grpc::InsecureChannelCredentials());
    opened_.push_back(channel);
    return Result<std::shared_ptr<grpc::Channel>>(channel);
  }};
  const TimePoint begin_ = TimePoint{} + 1h;
};

TEST_F(PeerChannelsTest, AnAgentThatIsAskedAgainHasOneConnection) {
  for (int i = 0; i < 5; ++i) EXPECT_TRUE(channels_.stub("unix:/nowhere", begin_));
  EXPECT_EQ(opened_.size(), 1U);
}

TEST_F(PeerChannelsTest, ThoseThatNobodyUsesAreClosedAndOthersStay) {
  for (int i = 0; i < 1'000; ++i)
    EXPECT_TRUE(channels_.stub("unix:/nowhere/" + std::to_string(i), begin_));
  EXPECT_EQ(num_open(), 1'000);
  const auto asked_again = channels_.stub("unix:/nowhere/7", begin_ + 1s).has_value();
  EXPECT_TRUE(asked_again);

  channels_.close_idle(begin_ + kIdleChannel - 1ms);
  EXPECT_EQ(num_open(), 1'000);
  channels_.close_idle(begin_ + kIdleChannel);
  EXPECT_EQ(num_open(), 1);
  channels_.close_idle(begin_ + kIdleChannel + 1s);
  EXPECT_EQ(num_open(), 0);
  EXPECT_EQ(channels_.size(), 0U);
}

// Output that is followed may say nothing for hours.
TEST_F(PeerChannelsTest, ACallThatLastsKeepsItsConnectionAndTheTimeBeginsWithItsEnd) {
  auto held = channels_.stub("unix:/nowhere", begin_);
  ASSERT_TRUE(held);

  channels_.close_idle(begin_ + 10h);
  EXPECT_EQ(num_open(), 1);
  held = PeerChannels::Stub();
  channels_.close_idle(begin_ + 10h + kIdleChannel - 1ms);
  EXPECT_EQ(num_open(), 1);
  channels_.close_idle(begin_ + 10h + kIdleChannel);
  EXPECT_EQ(num_open(), 0);
}

TEST_F(PeerChannelsTest, OneThatWasClosedIsOpenedAnew) {
  EXPECT_TRUE(channels_.stub("unix:/nowhere", begin_));
  channels_.close_idle(begin_ + kIdleChannel);

  EXPECT_TRUE(channels_.stub("unix:/nowhere", begin_ + 2 * kIdleChannel));

  EXPECT_EQ(opened_.size(), 2U);
  EXPECT_EQ(num_open(), 1);
}

int num_threads() {
  const std::filesystem::directory_iterator tasks("/proc/self/task");
  return static_cast<int>(std::distance(begin(tasks), end(tasks)));
}

// Each object of credentials has a thread of gRPC's that reads the files of its certificate.
TEST(PeerChannelsWithCertificates, AHundredPeersHaveAsManyThreadsAsOne) {
  constexpr int kOfGrpcItself = 16;  // at most: it may begin some of them meanwhile
  const test::ScratchFolder folder;
  const auto issued = issue_certificate({.folder = folder.file("ca"), .role = "node", .name = "n"});
  ASSERT_TRUE(issued);
  AgentConfig config;
  config.tls = {*issued + "/ca.pem", *issued + "/cert.pem", *issued + "/key.pem"};
  PeerChannels channels(open_with_certificate(config));
  ASSERT_TRUE(channels.stub("unix:/nowhere", TimePoint{}));
  const int with_one = num_threads();

  for (int i = 0; i < 100; ++i)
    ASSERT_TRUE(channels.stub("unix:/nowhere/" + std::to_string(i), TimePoint{}));

  EXPECT_EQ(channels.size(), 101U);
  EXPECT_LE(num_threads(), with_one + kOfGrpcItself);
}

}  // namespace
}  // namespace accel::agent::peer_channels_test
