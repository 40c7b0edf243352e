// The store in a real etcd: the contract of every store, the fence around the leader, and an etcd that goes away.

#include "agent/etcd/etcd_state_store.h"

#include <memory>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/etcd_server.h"
#include "tests/support/state_store_suite.h"

namespace accel::agent::etcd_state_store_test {
namespace {

using namespace std::chrono_literals;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr EtcdTiming kPatient = {.call_limit = 60s};  // however long a disk takes

// One etcd for all tests of this file, each in a cluster of its own; started by the first.
test::EtcdServer& etcd() {
  static test::EtcdServer server;
  return server;
}

class EtcdCluster {
 public:
  EtcdCluster() : name_("test-" + std::to_string(num_clusters()++)) {
    client_ = *EtcdClient::make({.endpoints = {etcd().endpoint()}, .tls = {}}, kPatient);
  }

  // Puts the leader's key anew, whoever had it: what an election does, without its lease.
  std::uint64_t elect(const std::string& address) {
    etcdserverpb::TxnRequest gone;
    gone.add_success()->mutable_request_delete_range()->set_key(leader_key(name_));
    EXPECT_TRUE(client_->txn(gone));
    etcdserverpb::TxnRequest txn;
    txn.add_success()->mutable_request_put()->set_key(leader_key(name_));
    txn.mutable_success(0)->mutable_request_put()->set_value(address);
    auto put = client_->txn(txn);
    EXPECT_TRUE(put) << (put ? "" : put.error().message());
    return put ? static_cast<std::uint64_t>(put->header().revision()) : 0;
  }

  Result<std::unique_ptr<EtcdStateStore>> open(std::uint64_t epoch,
                                               std::shared_ptr<const LeadTerm> term = nullptr) {
    return EtcdStateStore::open(client_, name_, epoch, std::move(term));
  }

  EtcdClient& client() { return *client_; }
  [[nodiscard]] const std::string& name() const { return name_; }

 private:
  static int& num_clusters() {
    static int count = 0;
    return count;
  }
  std::string name_;
  std::shared_ptr<EtcdClient> client_;
};

class EtcdBackend final : public state_store_suite::StoreBackend {
 public:
  std::unique_ptr<StateStore> open() override {
    auto store = cluster_.open(cluster_.elect("a:1"));
    EXPECT_TRUE(store) << (store ? "" : store.error().message());
    return store ? *std::move(store) : nullptr;
  }

 private:
  EtcdCluster cluster_;
};

std::unique_ptr<state_store_suite::StoreBackend> make_etcd_backend() {
  return std::make_unique<EtcdBackend>();
}

class EtcdStateStoreTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!test::EtcdServer::is_installed()) GTEST_SKIP() << "etcd is not installed";
  }
};

TEST_F(EtcdStateStoreTest, Fault41ALateWriteOfALeaderThatWasReplacedIsRefusedAndChangesNothing) {
  EtcdCluster cluster;
  auto old_leader = cluster.open(cluster.elect("a:1"));
  ASSERT_TRUE(old_leader);
  ASSERT_TRUE((*old_leader)->write({"job/x", "old"}, true));
  auto new_leader = cluster.open(cluster.elect("b:1"));
  ASSERT_TRUE(new_leader);
  ASSERT_TRUE((*new_leader)->write({"job/x", "new"}, true));

  for (const char* key : {"job/x", "job/y"}) {
    const auto refused = (*old_leader)->write({key, "late"}, true);
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().code(), ErrorCode::kLeadershipLost);
    EXPECT_THAT(refused.error().message(), HasSubstr("b:1 leads"));
  }
  const auto forgotten = (*old_leader)->write({"job/x", ""}, true);
  EXPECT_FALSE(forgotten);

  auto next = cluster.open(cluster.elect("c:1"));
  ASSERT_TRUE(next);
  EXPECT_THAT((*next)->records(), ElementsAre(Record{"job/x", "new"}));
}

TEST_F(EtcdStateStoreTest, ALeaderWhoseKeyIsGoneWritesNothing) {
  EtcdCluster cluster;
  auto store = cluster.open(cluster.elect("a:1"));
  ASSERT_TRUE(store);
  etcdserverpb::TxnRequest gone;
  gone.add_success()->mutable_request_delete_range()->set_key(leader_key(cluster.name()));
  ASSERT_TRUE(cluster.client().txn(gone));

  const auto refused = (*store)->write({"k", "v"}, true);

  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code(), ErrorCode::kLeadershipLost);
}

TEST_F(EtcdStateStoreTest, AfterTheTermNothingIsWritten) {
  EtcdCluster cluster;
  const auto term = std::make_shared<LeadTerm>(SteadyClock().now() + 1h);
  auto store = cluster.open(cluster.elect("a:1"), term);
  ASSERT_TRUE(store);
  ASSERT_TRUE((*store)->write({"k", "1"}, true));
  term->end();

  const auto refused = (*store)->write({"k", "2"}, true);

  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code(), ErrorCode::kLeadershipLost);
  auto next = cluster.open(cluster.elect("b:1"));
  EXPECT_THAT((*next)->records(), ElementsAre(Record{"k", "1"}));
}

// What a write leaves that was given up, repeated, and carried out by etcd after all: the record is not as the leader
// left it, and the present write must win.
TEST_F(EtcdStateStoreTest, AChangeOfTheRecordBehindItsBackIsNoticedAndOverwritten) {
  EtcdCluster cluster;
  auto store = cluster.open(cluster.elect("a:1"));
  ASSERT_TRUE(store);
  ASSERT_TRUE((*store)->write({"k", "1"}, true));
  etcdserverpb::TxnRequest behind;
  behind.add_success()->mutable_request_put()->set_key(records_prefix(cluster.name()) + "k");
  behind.mutable_success(0)->mutable_request_put()->set_value("stray");
  ASSERT_TRUE(cluster.client().txn(behind));

  ASSERT_TRUE((*store)->write({"k", "2"}, true));

  auto next = cluster.open(cluster.elect("b:1"));
  EXPECT_THAT((*next)->records(), ElementsAre(Record{"k", "2"}));
}

TEST_F(EtcdStateStoreTest, AWriteWaitsForAnEtcdThatIsAwayAndIsMadeWhenItIsBack) {
  test::EtcdServer server;
  const auto client = *EtcdClient::make({.endpoints = {server.endpoint()}, .tls = {}});
  etcdserverpb::TxnRequest txn;
  txn.add_success()->mutable_request_put()->set_key(leader_key("c"));
  txn.mutable_success(0)->mutable_request_put()->set_value("a:1");
  const auto put = client->txn(txn);
  ASSERT_TRUE(put);
  const auto term = std::make_shared<LeadTerm>(SteadyClock().now() + 1h);
  auto store =
      EtcdStateStore::open(client, "c", static_cast<std::uint64_t>(put->header().revision()), term);
  ASSERT_TRUE(store);
  server.kill();
  std::thread back([&server] { server.start(); });

  const auto written = (*store)->write({"k", "v"}, true);
  back.join();

  EXPECT_TRUE(written) << (written ? "" : written.error().message());
}

TEST_F(EtcdStateStoreTest, WithoutATermAnEtcdThatIsAwayIsAnErrorThatNamesIt) {
  const auto client = *EtcdClient::make({.endpoints = {"127.0.0.1:1"}, .tls = {}});

  const auto store = EtcdStateStore::open(client, "c", 1, nullptr);

  ASSERT_FALSE(store);
  EXPECT_EQ(store.error().code(), ErrorCode::kEtcdUnreachable);
  EXPECT_THAT(store.error().message(), HasSubstr("127.0.0.1:1"));
  EXPECT_FALSE(store.error().remedy().empty());
}

TEST_F(EtcdStateStoreTest, AMemberThatIsAwayIsPassedOver) {
  EtcdCluster cluster;
  const auto client =
      *EtcdClient::make({.endpoints = {"127.0.0.1:1", etcd().endpoint()}, .tls = {}});

  const auto store = EtcdStateStore::open(client, cluster.name(), cluster.elect("a:1"), nullptr);

  EXPECT_TRUE(store) << (store ? "" : store.error().message());
}

TEST_F(EtcdStateStoreTest, ARecordAboveWhatEtcdTakesIsRefusedWithTheLimit) {
  EtcdCluster cluster;
  auto store = cluster.open(cluster.elect("a:1"));
  ASSERT_TRUE(store);

  const auto refused = (*store)->write({"job/x", std::string(2 << 20, 'x')}, true);

  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code(), ErrorCode::kInvalidArgument);
  EXPECT_THAT(refused.error().message(), HasSubstr("1500000"));
}

TEST_F(EtcdStateStoreTest, LeasesAreGrantedKeptRevokedAndGoneWithTheirKey) {
  EtcdCluster cluster;
  EtcdClient& client = cluster.client();
  const auto lease = client.grant(5s);
  ASSERT_TRUE(lease);
  EXPECT_EQ(lease->ttl, 5s);
  etcdserverpb::TxnRequest txn;
  txn.add_success()->mutable_request_put()->set_key(leader_key(cluster.name()));
  txn.mutable_success(0)->mutable_request_put()->set_lease(lease->id);
  ASSERT_TRUE(client.txn(txn));
  EXPECT_EQ(client.keep_alive(lease->id)->ttl, 5s);

  ASSERT_TRUE(client.revoke(lease->id));

  EXPECT_EQ(client.keep_alive(lease->id)->ttl, 0s);
  EXPECT_TRUE(client.revoke(lease->id));
  etcdserverpb::RangeRequest look;
  look.set_key(leader_key(cluster.name()));
  EXPECT_TRUE(client.range(look)->kvs().empty());
}

}  // namespace
}  // namespace accel::agent::etcd_state_store_test

namespace accel::agent::state_store_suite {
// Without etcd the suite does not exist, which the tests above say.
INSTANTIATE_TEST_SUITE_P(
    Etcd,
    StateStoreContract,
    ::testing::ValuesIn(test::EtcdServer::is_installed()
                            ? std::vector<MakeBackend>{&etcd_state_store_test::make_etcd_backend}
                            : std::vector<MakeBackend>{}));
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(StateStoreContract);
}  // namespace accel::agent::state_store_suite
