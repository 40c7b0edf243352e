// What one shim may cost its agent: shims of users who stop, replace or flood them.

#include "agent/shims/shim_link.h"

#include <iterator>
#include <string>
#include <utility>
#include <vector>

#include <boost/asio/post.hpp>
#include <gmock/gmock.h>

#include "tests/support/fake_worker_host.h"
#include "tests/support/manual_clock.h"

namespace accel::agent::shim_link_test {
namespace {

using namespace std::chrono_literals;
using supervisor::Notice;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr int kNumWorkers = 2;

class ShimLinkTest : public testing::Test {
 protected:
  void open() {
    auto host = std::make_unique<test::FakeWorkerHost>();
    host_ = host.get();
    link_.open(std::move(host),
               {.on_event =
                    [this](const supervisor::HostEvent& event) {
                      ++num_events_;
                      if (std::holds_alternative<supervisor::JobOutcome>(event)) link_.close();
                    },
                .on_lost =
                    [this](const Error& error) {
                      lost_.push_back(error.message());
                      link_.close();
                    }},
               kNumWorkers);
  }

  void push_notices(int number) {
    for (int i = 0; i < number; ++i) host_->push(Notice{"again"});
  }

  boost::asio::io_context loop_;
  test::ManualClock clock_;
  ShimLink link_{loop_, clock_};
  test::FakeWorkerHost* host_ = nullptr;
  int num_events_ = 0;
  std::vector<std::string> lost_;
};

TEST_F(ShimLinkTest, TellsWhatComesUntilTheLastWord) {
  open();
  push_notices(2);
  host_->push(supervisor::JobOutcome{});
  link_.read();

  EXPECT_EQ(num_events_, 3);
  EXPECT_FALSE(link_.is_open());
}

// Issue 19: the loop read as long as the shim wrote.
TEST_F(ShimLinkTest, Fault67OtherWorkComesBetweenTheEventsOfAShimThatNeverStops) {
  open();
  push_notices(10 * ShimLink::kEventsATurn);
  int seen_by_others = 0;
  boost::asio::post(loop_, [&] { seen_by_others = num_events_; });
  link_.read();
  loop_.run_one();

  EXPECT_EQ(num_events_, ShimLink::kEventsATurn);
  EXPECT_EQ(seen_by_others, ShimLink::kEventsATurn);
}

TEST_F(ShimLinkTest, Fault67AShimThatFloodsIsReadAtARateAfterItsBurst) {
  open();
  push_notices(ShimLink::kBurst + 1'000);
  for (int i = 0; i < 2 * ShimLink::kBurst / ShimLink::kEventsATurn; ++i) link_.read();
  EXPECT_EQ(num_events_, ShimLink::kBurst);

  clock_.advance(100ms);
  for (int i = 0; i < 10; ++i) link_.read();
  EXPECT_EQ(num_events_, ShimLink::kBurst + ShimLink::kUnitsEach / 10);
}

TEST_F(ShimLinkTest, Fault67WhatTheAgentRecordsCostsMore) {
  open();
  const int most = ShimLink::kBurst / (1 + ShimLink::kRecordUnits) + 1;
  for (int i = 0; i < 2 * most; ++i) host_->push(supervisor::GenerationStarted{});
  for (int i = 0; i < 2 * most; ++i) link_.read();

  EXPECT_EQ(num_events_, most);
}

TEST_F(ShimLinkTest, Fault67OtherWorkComesBetweenTheBytesOfAShimThatSaysMuch) {
  open();
  push_notices(2);
  host_->bytes_each = ShimLink::kBytesATurn;
  link_.read();

  EXPECT_EQ(num_events_, 1);
}

supervisor::WorkerExit exit_of(int local_rank) {
  supervisor::WorkerExit exit;
  exit.local_rank = local_rank;
  return exit;
}

// Its job took as many seats of the node as it said, and as much of the agent's memory.
TEST_F(ShimLinkTest, Fault67AShimThatSpeaksOfWorkersWhichItsJobDoesNotHaveIsKilled) {
  supervisor::Snapshot snapshot;
  snapshot.workers.resize(kNumWorkers + 1);
  supervisor::GenerationEnded ended;
  ended.outcome.exits = {exit_of(kNumWorkers)};
  const supervisor::HostEvent claims[] = {supervisor::GenerationStarted{.pids = {1, 2, 3}},
                                          exit_of(kNumWorkers),
                                          exit_of(-1),
                                          supervisor::Restarting{.because = exit_of(kNumWorkers)},
                                          supervisor::Hung{.silent_ranks = {0, 1, 2}},
                                          snapshot,
                                          ended};
  for (const auto& claim : claims) {
    open();
    host_->push(claim);
    link_.read();
    EXPECT_FALSE(link_.is_open());
  }

  EXPECT_EQ(num_events_, 0);
  EXPECT_EQ(lost_.size(), std::size(claims));
  EXPECT_EQ(lost_[0], "accel-shim spoke of workers that the job does not have, and was killed");
}

TEST_F(ShimLinkTest, Fault67TheLastWordOfSuchAShimIsNotBelieved) {
  open();
  host_->push(supervisor::JobOutcome{.success = true, .exits = {exit_of(kNumWorkers)}});
  link_.read();

  EXPECT_EQ(num_events_, 0);
  EXPECT_THAT(lost_, ElementsAre("accel-shim spoke of workers that the job does not have"));
}

// Issue 19: `kill -STOP $PPID` in a worker, and the job held its seat for ever.
TEST_F(ShimLinkTest, Fault67AShimThatDoesNotDoWhatItWasToldInTimeIsKilled) {
  open();
  link_.must_act_within(0ms);
  while (lost_.empty()) loop_.run_one();

  EXPECT_THAT(lost_, ElementsAre("accel-shim did not do in time what it was told, and was killed"));
}

TEST_F(ShimLinkTest, TheEarliestTimeCountsAndOneThatHasActedIsLeftAlone) {
  open();
  link_.must_act_within(0ms);
  link_.must_act_within(1h);
  link_.has_acted();
  for (int i = 0; i < 10; ++i) loop_.poll_one();  // its descriptor is always readable
  EXPECT_THAT(lost_, IsEmpty());

  link_.must_act_within(1h);
  link_.must_act_within(0ms);
  while (lost_.empty()) loop_.run_one();
  EXPECT_FALSE(link_.is_open());
}

}  // namespace
}  // namespace accel::agent::shim_link_test
