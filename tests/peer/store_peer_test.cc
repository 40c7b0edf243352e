// c10d's own C++ client against our store, as libaccel's process groups use it. tests/peer/
// store_client.py has every call; here is what only C++ shows: the same client in many threads.

#include <atomic>
#include <chrono>
#include <string>
#include <thread>
#include <vector>

#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "runtime/supervisor/store/store_server.h"

namespace accel::supervisor::store_peer_test {
namespace {

using ::testing::ElementsAre;

std::vector<std::uint8_t> bytes(const std::string& text) {
  return {text.begin(), text.end()};
}

class C10dClient : public ::testing::Test {
 protected:
  C10dClient() {
    StoreOptions options;
    options.policy.port = 0;
    server_ = std::move(StoreServer::listen(context_, std::move(options))).value();
    port_ = server_->port();
    thread_ = std::jthread([this] { context_.run(); });
  }
  ~C10dClient() override {
    context_.stop();
    thread_.join();
  }

  c10::intrusive_ptr<c10d::TCPStore> connect() {
    c10d::TCPStoreOptions options;
    options.port = port_;
    options.isServer = false;
    options.timeout = std::chrono::seconds(60);
    return c10::make_intrusive<c10d::TCPStore>("127.0.0.1", options);
  }

  boost::asio::io_context context_;
  boost::asio::executor_work_guard<boost::asio::io_context::executor_type> guard_{
      context_.get_executor()};
  std::unique_ptr<StoreServer> server_;
  std::uint16_t port_ = 0;
  std::jthread thread_;
};

TEST_F(C10dClient, StoresCountsComparesAndDeletes) {
  const auto store = connect();

  store->set("key", bytes("value"));

  EXPECT_EQ(store->get("key"), bytes("value"));
  EXPECT_EQ(store->add("n", 41), 41);
  EXPECT_EQ(store->add("n", 1), 42);
  EXPECT_EQ(store->compareSet("key", bytes("value"), bytes("next")), bytes("next"));
  EXPECT_EQ(store->compareSet("key", bytes("value"), bytes("other")), bytes("next"));
  EXPECT_TRUE(store->check({"key", "n"}));
  EXPECT_FALSE(store->check({"key", "absent"}));
  EXPECT_TRUE(store->deleteKey("key"));
  EXPECT_FALSE(store->deleteKey("key"));
}

TEST_F(C10dClient, MovesManyValuesAtOnce) {
  const auto store = connect();

  store->multiSet({"a", "b"}, {bytes("1"), bytes("2")});
  store->append("a", bytes("more"));

  EXPECT_THAT(store->multiGet({"b", "a"}), ElementsAre(bytes("2"), bytes("1more")));
}

TEST_F(C10dClient, AWaitThatTimesOutLeavesTheConnectionUsable) {
  const auto store = connect();

  EXPECT_ANY_THROW(store->wait({"never"}, std::chrono::milliseconds(200)));

  store->set("key", bytes("value"));
  EXPECT_EQ(store->get("key"), bytes("value"));
}

TEST_F(C10dClient, AHundredRanksMeetAtABarrier) {
  constexpr int kRanks = 100;
  std::atomic<int> through = 0;
  {
    std::vector<std::jthread> ranks;
    for (int rank = 0; rank < kRanks; ++rank) {
      ranks.emplace_back([&] {
        const auto store = connect();
        if (store->add("arrived", 1) == kRanks) store->set("all", bytes("1"));
        store->wait({"all"}, std::chrono::seconds(60));
        ++through;
      });
    }
  }

  EXPECT_EQ(through, kRanks);
}

}  // namespace
}  // namespace accel::supervisor::store_peer_test
