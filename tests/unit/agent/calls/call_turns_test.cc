// What a flood of one caller's calls leaves to others and to the loop; by order, not by time.

#include "agent/calls/call_turns.h"

#include <string>
#include <vector>

#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>
#include <gmock/gmock.h>

namespace accel::agent::call_turns_test {
namespace {

using testing::ElementsAre;

class CallTurnsTest : public testing::Test {
 protected:
  void call(CallTurns& turns, const std::string& caller) {
    EXPECT_TRUE(
        turns.add(caller, [this, caller](const CallTurns::Over&) { order_.push_back(caller); }));
  }

  boost::asio::io_context loop_;
  std::vector<std::string> order_;
};

TEST_F(CallTurnsTest, Fault64AFloodOfOneCallerDelaysOthersAndTheLoopByOneCall) {
  CallTurns turns(loop_, 4);
  for (int i = 0; i < 1'000; ++i) call(turns, "ann");
  call(turns, "bob");
  boost::asio::post(loop_, [this] { order_.push_back("beat"); });

  loop_.run();

  ASSERT_EQ(order_.size(), 1'002U);
  order_.resize(3);
  EXPECT_THAT(order_, ElementsAre("ann", "beat", "bob"));
}

TEST_F(CallTurnsTest, Fault64CallsThatTakeLongHoldUpTheirOwnCallerAlone) {
  CallTurns turns(loop_, 2);
  std::vector<CallTurns::Over> open;
  for (int i = 0; i < 4; ++i)
    EXPECT_TRUE(turns.add("ann", [&open](const CallTurns::Over& over) { open.push_back(over); }));
  call(turns, "bob");

  loop_.run();
  EXPECT_EQ(open.size(), 2U);
  EXPECT_THAT(order_, ElementsAre("bob"));

  open.erase(open.begin());
  loop_.restart();
  loop_.run();
  EXPECT_EQ(open.size(), 2U);
  open.clear();
  loop_.restart();
  loop_.run();
  EXPECT_EQ(open.size(), 1U);
}

// Streams that are reset leave their calls behind.
TEST_F(CallTurnsTest, Fault64CallsThatWaitAreBoundedForEachCaller) {
  CallTurns turns(loop_, 1);
  for (std::size_t i = 0; i < CallTurns::kMostWaiting; ++i) call(turns, "ann");

  EXPECT_FALSE(turns.add("ann", [](const CallTurns::Over&) {}));
  call(turns, "bob");

  loop_.run();
  EXPECT_EQ(order_.size(), CallTurns::kMostWaiting + 1);
  call(turns, "ann");
}

TEST_F(CallTurnsTest, ACallMayOutliveTheTurns) {
  CallTurns::Over open;
  {
    CallTurns turns(loop_, 1);
    EXPECT_TRUE(turns.add("ann", [&open](const CallTurns::Over& over) { open = over; }));
    call(turns, "ann");
    loop_.run();
  }
  open.reset();
  loop_.restart();
  loop_.run();
  EXPECT_THAT(order_, ElementsAre());
}

}  // namespace
}  // namespace accel::agent::call_turns_test
