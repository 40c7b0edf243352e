// The seat of machine 0 in a real etcd.

#include "launcher/cluster/meeting/etcd_key.h"

#include <atomic>
#include <condition_variable>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "runtime/clock.h"
#include "tests/support/etcd_server.h"
#include "tests/support/fake_etcd.h"

namespace accel::cluster::etcd_key_test {
namespace {

using namespace std::chrono_literals;
using ::testing::StartsWith;

constexpr agent::EtcdTiming kPatient = {.call_limit = 60s};  // however long a disk takes
constexpr EtcdKeyTiming kSeesItThrough = {.give_up_within = 60s, .calls = kPatient};

// One etcd for all tests of this file, each with a run id of its own.
test::EtcdServer& etcd() {
  static test::EtcdServer server;
  return server;
}

// An etcd without anything in it, which keeps for how much longer each caller would have waited.
class TimeKeepingEtcd final : public test::FakeEtcd {
 public:
  ~TimeKeepingEtcd() override { shut_down(); }

  std::atomic<Duration> range{}, txn{}, grant{};

 private:
  static Duration left(const grpc::ServerContext& context) {
    return std::chrono::duration_cast<Duration>(context.deadline() -
                                                std::chrono::system_clock::now());
  }
  grpc::Status Range(grpc::ServerContext* context,
                     const etcdserverpb::RangeRequest*,
                     etcdserverpb::RangeResponse*) override {
    range = left(*context);
    return grpc::Status::OK;
  }
  grpc::Status Txn(grpc::ServerContext* context,
                   const etcdserverpb::TxnRequest*,
                   etcdserverpb::TxnResponse* response) override {
    txn = left(*context);
    response->set_succeeded(true);
    return grpc::Status::OK;
  }
  grpc::Status LeaseGrant(grpc::ServerContext* context,
                          const etcdserverpb::LeaseGrantRequest*,
                          etcdserverpb::LeaseGrantResponse* response) override {
    grant = left(*context);
    response->set_id(7);
    response->set_ttl(60);
    return grpc::Status::OK;
  }
};

class EtcdKeyTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!test::EtcdServer::is_installed()) GTEST_SKIP() << "/usr/bin/etcd is not installed";
    client_ = *agent::EtcdClient::make({.endpoints = {etcd().endpoint()}, .tls = {}}, kPatient);
  }

  std::unique_ptr<launcher::EtcdSeat> open(EtcdKeyTiming timing = {}) {
    const std::string run = ::testing::UnitTest::GetInstance()->current_test_info()->name();
    auto seat = EtcdKey::open({.endpoint = etcd().endpoint()}, run, timing);
    EXPECT_TRUE(seat);
    return *std::move(seat);
  }

  // Who has the seat then. A launcher asks again too when etcd has not answered in time.
  static std::string take(launcher::EtcdSeat& seat, const std::string& place) {
    while (true) {
      const auto standing = seat.take(place);
      if (standing) return *standing;
      EXPECT_EQ(standing.error().code(), ErrorCode::kEtcdUnreachable);
      if (HasFailure()) return standing.error().message();
    }
  }

  // The key as it stands there.
  mvccpb::KeyValue standing() {
    const std::string run = ::testing::UnitTest::GetInstance()->current_test_info()->name();
    etcdserverpb::RangeRequest request;
    request.set_key("/accel-launch/" + run + "/main");
    const auto answer = client_->range(request);
    return answer && !answer->kvs().empty() ? answer->kvs(0) : mvccpb::KeyValue();
  }

  template <typename Condition>
  static bool await(Condition condition) {
    for (int i = 0; i < 1'000; ++i) {
      if (condition()) return true;
      std::this_thread::sleep_for(10ms);
    }
    return false;
  }

  std::shared_ptr<agent::EtcdClient> client_;
};

TEST_F(EtcdKeyTest, BelongsToTheFirstUntilItIsGivenUp) {
  auto first = open(kSeesItThrough);
  auto second = open(kSeesItThrough);
  EXPECT_EQ(take(*first, "first"), "first");
  EXPECT_EQ(take(*second, "second"), "first");
  EXPECT_EQ(take(*first, "first"), "first");
  EXPECT_EQ(first->own_address(), "127.0.0.1");

  first->give_up();

  EXPECT_EQ(take(*second, "second"), "second");
  EXPECT_EQ(take(*first, "first"), "second");
  second.reset();
  EXPECT_EQ(standing().value(), "");
}

TEST_F(EtcdKeyTest, IsOursAlsoWhenTheAnswerWasLost) {
  auto lost = open({.lease = 600s, .renew_every = 300s});  // it will not miss the key
  ASSERT_EQ(take(*lost, "place"), "place");

  auto again = open(kSeesItThrough);  // the same launcher that has not heard of it

  EXPECT_EQ(take(*again, "place"), "place");
  again->give_up();
  EXPECT_EQ(standing().value(), "");
}

TEST_F(EtcdKeyTest, ComesBackWhenItsLeaseRanOut) {
  auto seat = open({.lease = 10s, .renew_every = 20ms});
  ASSERT_EQ(take(*seat, "place"), "place");

  const std::int64_t lease = standing().lease();
  ASSERT_TRUE(client_->revoke(lease));

  EXPECT_TRUE(await([&] { return standing().value() == "place" && standing().lease() != lease; }));
  EXPECT_EQ(seat->successor(), "");
}

TEST_F(EtcdKeyTest, ComesBackWhenItWasTakenAway) {
  auto seat = open({.lease = 10s, .renew_every = 20ms});
  ASSERT_EQ(take(*seat, "place"), "place");

  etcdserverpb::TxnRequest txn;
  txn.add_success()->mutable_request_delete_range()->set_key(standing().key());
  ASSERT_TRUE(client_->txn(txn));

  EXPECT_TRUE(await([&] { return standing().value() == "place"; }));
  EXPECT_EQ(seat->successor(), "");
}

TEST_F(EtcdKeyTest, TheNextOneHasAHigherTerm) {
  auto first = open();
  ASSERT_EQ(take(*first, "first"), "first");
  first.reset();
  auto second = open();
  ASSERT_EQ(take(*second, "second"), "second");
  const std::uint64_t term = second->term();
  second.reset();
  auto third = open();
  ASSERT_EQ(take(*third, "third"), "third");

  EXPECT_GT(term, 0u);
  EXPECT_GT(third->term(), term);
}

// It is told so when etcd answers again.
TEST_F(EtcdKeyTest, AnEtcdThatDoesNotAnswerHoldsUpNobodyWhoGivesTheKeyUp) {
  auto seat = open({.lease = 60s, .give_up_within = 0ms, .calls = kPatient});
  ASSERT_EQ(take(*seat, "place"), "place");
  etcd().suspend();

  seat->give_up();  // else for the 60 s of a call

  etcd().resume();
  seat.reset();
  EXPECT_EQ(standing().value(), "");
}

TEST_F(EtcdKeyTest, StaysWithTheOneWhoTookItMeanwhile) {
  auto seat = open({.lease = 10s, .renew_every = 200ms});
  ASSERT_EQ(take(*seat, "place"), "place");
  auto other = open();

  // Between two renewals.
  etcdserverpb::TxnRequest txn;
  txn.add_success()->mutable_request_put()->set_key(standing().key());
  txn.mutable_success(0)->mutable_request_put()->set_value("another");
  const std::int64_t lease = standing().lease();
  ASSERT_TRUE(client_->txn(txn));
  ASSERT_TRUE(client_->revoke(lease));

  EXPECT_TRUE(await([&] { return seat->successor() == "another"; }));
  seat->give_up();
  EXPECT_EQ(take(*other, "place"), "another");
}

// To ask again after a second would begin anew, for as long as the disk is slow.
TEST(EtcdKeyTimingTest, LeavesWritesTheTimeOfABusyDisk) {
  TimeKeepingEtcd slow;
  const auto seat = EtcdKey::open({.endpoint = slow.endpoint()},
                                  "job",
                                  {.lease = 60s, .calls = {.call_limit = 1h}, .write_limit = 3h});
  ASSERT_TRUE(seat);

  ASSERT_EQ((*seat)->take("place").value(), "place");

  // gRPC writes so long a timeout into its header in tens of seconds, rounded up.
  EXPECT_LE(slow.range.load(), 1h + 10s);
  EXPECT_GT(slow.grant.load(), 2h);
  EXPECT_GT(slow.txn.load(), 2h);
}

TEST_F(EtcdKeyTest, ReachesWhatTakesConnections) {
  auto seat = open();
  const std::string endpoint = etcd().endpoint();
  const auto port = static_cast<std::uint16_t>(std::stoi(endpoint.substr(endpoint.rfind(':') + 1)));

  EXPECT_TRUE(seat->reach("127.0.0.1", port));
  EXPECT_THAT(seat->reach("127.0.0.1", 1).error().message(),
              StartsWith("nothing takes connections at 127.0.0.1:1"));
}

}  // namespace
}  // namespace accel::cluster::etcd_key_test
