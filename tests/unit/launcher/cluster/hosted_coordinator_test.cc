// When a launcher has the coordinator of its job, by an etcd that says what the test wants, and when it gives it up.

#include "launcher/cluster/hosting/hosted_coordinator.h"

#include <optional>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "agent/rendezvous/session_client.h"

namespace accel::cluster::hosted_coordinator_test {
namespace {

using namespace std::chrono_literals;
using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr std::uint64_t kTerm = 7;

// What etcd says; it outlives the seat, which the place has.
struct Etcd {
  std::string successor;
  bool is_given_up = false;
};

class FakeSeat final : public launcher::EtcdSeat {
 public:
  explicit FakeSeat(Etcd& etcd) : etcd_(etcd) {}
  const std::string& own_address() const override { return address_; }
  Result<std::string> take(const std::string& place) override { return place; }
  Result<void> reach(const std::string&, std::uint16_t) override { return {}; }
  std::uint64_t term() const override { return kTerm; }
  void give_up() override { etcd_.is_given_up = true; }
  std::string successor() const override { return etcd_.successor; }

 private:
  Etcd& etcd_;
  const std::string address_ = "127.0.0.1";
};

class HostedCoordinatorTest : public ::testing::Test {
 protected:
  HostedCoordinatorTest() {
    request_.settings.insecure = true;
    request_.settings.etcd.endpoint = "gpu-01:2379";
    place_.listen = "127.0.0.1:0";
    place_.is_local = true;
    place_.seat = std::make_unique<FakeSeat>(etcd_);
  }
  ~HostedCoordinatorTest() override {
    bool is_closed = false;
    hosted_.close([&] { is_closed = true; });
    run_until([&] { return is_closed; });
  }

  void host(std::uint64_t known_epoch = 0) {
    auto seat = hosted_.listen(place_, *place_.listen);
    ASSERT_TRUE(seat) << seat.error().message();
    seat_ = seat->get();
    place_.endpoint.port(static_cast<std::uint16_t>((*seat)->port()));
    hosted_.offer(*std::move(seat));
    ASSERT_TRUE(hosted_.begin(known_epoch));
  }

  void expect_that_close_waits() {
    bool is_closed = false;
    hosted_.close([&] { is_closed = true; });
    EXPECT_FALSE(is_closed);
    run_until([&] { return is_closed; });
  }

  // A node that has heard of a coordinator of this epoch says hello.
  void hear_of_epoch(std::uint64_t epoch) {
    const std::string address = "127.0.0.1:" + std::to_string(place_.endpoint.port());
    std::optional<agent::SessionClient> node;
    node.emplace(loop_,
                 grpc::CreateChannel(address, grpc::InsecureChannelCredentials()),
                 agent::SessionClient::Handlers{
                     .on_open =
                         [&] {
                           v1::AgentMsg message;
                           message.mutable_fence()->set_leader_epoch(epoch);
                           message.mutable_hello()->mutable_node()->set_node_id("gpu-02");
                           node->send(std::move(message));
                         },
                     .on_message = [](const v1::CoordMsg&) {},
                     .on_closed = [](const grpc::Status&) {}});
    node->connect();
    run_until([this] { return !said_.empty(); });
    bool is_closed = false;
    node->close([&] { is_closed = true; });
    run_until([&] { return is_closed; });
  }

  template <typename Condition>
  void run_until(Condition condition) {
    const auto end = std::chrono::steady_clock::now() + 30s;
    while (!condition() && std::chrono::steady_clock::now() < end) {
      loop_.restart();
      loop_.run_one_for(100ms);
    }
    EXPECT_TRUE(condition());
  }

  Etcd etcd_;
  boost::asio::io_context loop_{1};
  launcher::ElasticRequest request_;
  MeetingPlace place_;
  std::vector<std::string> said_;
  std::optional<Error> ended_with_;
  bool is_ending_ = false;
  CoordinatorSeat* seat_ = nullptr;
  HostedCoordinator hosted_{loop_,
                            request_,
                            place_,
                            {.on_end = [this](const Error& error) { ended_with_ = error; },
                             .is_ending = [this] { return is_ending_; },
                             .say = [this](const std::string& line) { said_.push_back(line); }}};
};

TEST_F(HostedCoordinatorTest, APlaceOfAnotherLauncherGetsNoCoordinatorHere) {
  place_.listen.reset();

  ASSERT_TRUE(hosted_.begin(0));

  EXPECT_FALSE(hosted_.has_seat());
  EXPECT_EQ(hosted_.job(), nullptr);
}

TEST_F(HostedCoordinatorTest, ItsEpochIsThatOfEtcdOrAboveWhatTheNodeHasHeardOf) {
  host();
  EXPECT_EQ(seat_->host().state().epoch, kTerm);

  hosted_.step_down();
  EXPECT_FALSE(hosted_.has_seat());
  host(/*known_epoch=*/20);
  EXPECT_EQ(seat_->host().state().epoch, 21U);
}

// etcd was emptied, or restored: it counts from below, and nodes of the job know better.
TEST_F(HostedCoordinatorTest, ANodeThatKnowsAHigherEpochEndsTheLauncher) {
  host();

  hear_of_epoch(kTerm + 1);
  run_until([this] { return ended_with_.has_value(); });

  EXPECT_EQ(ended_with_->code(), ErrorCode::kCoordinatorLost);
  EXPECT_THAT(ended_with_->message(),
              HasSubstr("etcd has forgotten what it knew of this job: "
                        "an agent follows leader epoch 8, this is 7"));
  EXPECT_EQ(ended_with_->remedy(), "start the job again");
}

TEST_F(HostedCoordinatorTest, WithoutEtcdAHigherEpochIsToldAndEndsNothing) {
  request_.settings.etcd.endpoint.clear();
  place_.seat.reset();
  place_.endpoint.port(0);
  auto probe = hosted_.listen(place_, "127.0.0.1:0");
  ASSERT_TRUE(probe);
  place_.endpoint.port(static_cast<std::uint16_t>((*probe)->port()));
  place_.listen = "127.0.0.1:" + std::to_string((*probe)->port());
  hosted_.retire(*std::move(probe));
  run_until([this] { return hosted_.begin(0).has_value() && hosted_.has_seat(); });

  hear_of_epoch(2);
  loop_.restart();
  loop_.poll();

  EXPECT_THAT(said_, Contains(HasSubstr("an agent follows leader epoch 2")));
  EXPECT_FALSE(ended_with_.has_value());
}

TEST_F(HostedCoordinatorTest, ASeatThatAnotherLauncherHasNowIsLeft) {
  host();

  etcd_.successor = "another one";
  run_until([this] { return !hosted_.has_seat(); });

  EXPECT_THAT(said_, Contains(HasSubstr(": the nodes meet there")));
  EXPECT_FALSE(ended_with_.has_value());
}

// Nodes may have come to it, and their sessions end on the loop.
TEST_F(HostedCoordinatorTest, CloseWaitsForTheEndOfACoordinatorThatListenedForNothing) {
  auto seat = hosted_.listen(place_, *place_.listen);
  ASSERT_TRUE(seat) << seat.error().message();
  hosted_.retire(*std::move(seat));

  expect_that_close_waits();
}

TEST_F(HostedCoordinatorTest, CloseEndsACoordinatorThatWasOffered) {
  auto seat = hosted_.listen(place_, *place_.listen);
  ASSERT_TRUE(seat) << seat.error().message();
  hosted_.offer(*std::move(seat));

  expect_that_close_waits();
}

TEST_F(HostedCoordinatorTest, WithHardFencingALostSeatEndsALauncherWhoseJobHasNotBegun) {
  request_.settings.hard_fencing = true;
  host();

  etcd_.successor = "another one";
  run_until([this] { return ended_with_.has_value(); });

  EXPECT_EQ(ended_with_->code(), ErrorCode::kCoordinatorLost);
  EXPECT_TRUE(hosted_.has_seat());
}

TEST_F(HostedCoordinatorTest, ALauncherThatEndsLooksForNoOtherHost) {
  host();
  is_ending_ = true;
  etcd_.successor = "another one";

  loop_.restart();
  loop_.run_for(1500ms);  // it looks once a second

  EXPECT_THAT(said_, IsEmpty());
  EXPECT_TRUE(hosted_.has_seat());
}

}  // namespace
}  // namespace accel::cluster::hosted_coordinator_test
