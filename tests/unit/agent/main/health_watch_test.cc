// The sign of life (fault 28 of docs/reference/faults.md): given while loop and RPC move, and not else.

#include "agent/main/health_watch.h"

#include <condition_variable>
#include <mutex>
#include <thread>

#include <gmock/gmock.h>

#include "agent/calls/grpc_server.h"
#include "agent/config/agent_config.h"
#include "tests/support/scratch_folder.h"

namespace accel::agent::health_watch_test {
namespace {

using namespace std::chrono_literals;
using testing::HasSubstr;
using testing::Not;

constexpr auto kPeriod = 20ms;
constexpr auto kPatience = 60s;

class HealthWatchTest : public testing::Test {
 protected:
  HealthWatch::Handlers handlers() {
    return {.sign = [this] { note([this] { ++num_signs_; }); },
            .on_missing = [this](const std::string& what) { note([&] { missing_ = what; }); }};
  }
  std::vector<HealthWatch::Loop> loops() { return {{"the supervisor's loop", loop_}}; }
  void note(const std::function<void()>& change) {
    {
      const std::lock_guard lock(mutex_);
      change();
    }
    changed_.notify_all();
  }
  bool wait_until(const std::function<bool()>& condition) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, kPatience, condition);
  }

  test::ScratchFolder folder_;
  const std::string socket_ = folder_.file("agent.sock");
  boost::asio::io_context loop_;
  std::mutex mutex_;
  std::condition_variable changed_;
  int num_signs_ = 0;
  std::string missing_;
};

TEST_F(HealthWatchTest, SignsComeWhileLoopAndRpcMove) {
  auto server = GrpcServer::start(AgentConfig(), socket_, {});
  ASSERT_TRUE(server);
  auto work = boost::asio::make_work_guard(loop_);
  std::thread runs([this] { loop_.run(); });
  {
    const HealthWatch watch(loops(), socket_, kPeriod, handlers());
    EXPECT_TRUE(wait_until([this] { return num_signs_ >= 4; }));
  }
  work.reset();
  loop_.stop();
  runs.join();
  (*server)->shutdown();
}

TEST_F(HealthWatchTest, Fault28ALoopThatStandsStillGivesNoSign) {
  auto server = GrpcServer::start(AgentConfig(), socket_, {});
  ASSERT_TRUE(server);
  {
    const HealthWatch watch(loops(), socket_, kPeriod, handlers());
    EXPECT_TRUE(wait_until([this] { return missing_ == "the supervisor's loop"; }));
    EXPECT_EQ(num_signs_, 1);  // at the start
    loop_.poll();
    EXPECT_TRUE(wait_until([this] { return num_signs_ == 2; }));
  }
  (*server)->shutdown();
}

TEST_F(HealthWatchTest, Fault28EachLoopThatStandsStillIsNamed) {
  auto server = GrpcServer::start(AgentConfig(), socket_, {});
  ASSERT_TRUE(server);
  boost::asio::io_context coordinators;
  auto work = boost::asio::make_work_guard(loop_);
  std::thread runs([this] { loop_.run(); });
  {
    auto both = loops();
    both.push_back({"the coordinator's loop", coordinators});
    const HealthWatch watch(both, socket_, kPeriod, handlers());
    EXPECT_TRUE(wait_until([this] { return missing_ == "the coordinator's loop"; }));
    EXPECT_EQ(num_signs_, 1);  // at the start
    coordinators.poll();
    EXPECT_TRUE(wait_until([this] { return num_signs_ == 2; }));
  }
  work.reset();
  loop_.stop();
  runs.join();
  (*server)->shutdown();
}

TEST_F(HealthWatchTest, Fault28ASocketWithoutAServerGivesNoSign) {
  auto work = boost::asio::make_work_guard(loop_);
  std::thread runs([this] { loop_.run(); });
  {
    const HealthWatch watch(loops(), socket_, kPeriod, handlers());
    EXPECT_TRUE(wait_until([this] { return missing_ == "its own RPC"; }));
    EXPECT_EQ(num_signs_, 1);
  }
  work.reset();
  loop_.stop();
  runs.join();
}

}  // namespace
}  // namespace accel::agent::health_watch_test
