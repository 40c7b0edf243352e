// For whom a client waits, how long, and what it says.

#include "launcher/cluster/agents/patience.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace accel::cluster::patience_test {
namespace {

using namespace std::chrono_literals;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

const Error kNobodyLeads(ErrorCode::kCoordinatorLost, "node 'a' does not lead");
const Error kNoAgent(ErrorCode::kAgentUnreachable, "no answer");
const Error kNotAllowed(ErrorCode::kAgentRefused, "you may not");

v1::Job job_with(std::uint32_t hold, std::uint32_t max_nodes) {
  v1::Job job;
  job.set_hold_seconds(hold);
  job.set_max_nodes(max_nodes);
  return job;
}

class PatienceTest : public ::testing::Test {
 protected:
  bool asks_again(Patience& patience, const Error& error, Duration later = 0s) {
    return patience.is_worth_it(error, now_ + later, notice_);
  }
  TimePoint now_{1'000s};
  std::string notice_;
};

TEST_F(PatienceTest, WithoutAJobItWaitsForACoordinatorAndNotForAnAgent) {
  Patience patience(30s);

  EXPECT_FALSE(asks_again(patience, kNoAgent));
  EXPECT_FALSE(asks_again(patience, kNotAllowed));
  EXPECT_TRUE(asks_again(patience, kNobodyLeads));
}

TEST_F(PatienceTest, TheWaitForACoordinatorIsSaidOnceAndEnds) {
  Patience patience(30s);

  ASSERT_TRUE(asks_again(patience, kNobodyLeads));
  EXPECT_THAT(notice_, HasSubstr("up to 30 s"));
  EXPECT_THAT(notice_, HasSubstr("node 'a' does not lead"));
  notice_.clear();
  EXPECT_TRUE(asks_again(patience, kNobodyLeads, 29s));
  EXPECT_THAT(notice_, IsEmpty());
  EXPECT_FALSE(asks_again(patience, kNobodyLeads, 30s));
}

TEST_F(PatienceTest, TheAgentMayBeStartedAnewWhileACoordinatorIsWaitedFor) {
  Patience patience(30s);
  ASSERT_TRUE(asks_again(patience, kNobodyLeads));

  EXPECT_TRUE(asks_again(patience, kNoAgent, 1s));
  EXPECT_FALSE(asks_again(patience, kNotAllowed, 1s));
}

TEST_F(PatienceTest, WithoutALimitNobodyIsWaitedForAndNothingSaid) {
  Patience patience(0s);

  EXPECT_FALSE(asks_again(patience, kNobodyLeads));
  EXPECT_THAT(notice_, IsEmpty());
}

TEST_F(PatienceTest, AJobOnOneNodeIsWaitedForAsLongAsItsWorkersAreHeld) {
  Patience held(job_with(60, 0));
  EXPECT_TRUE(asks_again(held, kNoAgent));
  EXPECT_TRUE(asks_again(held, kNoAgent, 74s));
  EXPECT_FALSE(asks_again(held, kNoAgent, 75s));

  Patience not_held(job_with(0, 0));
  EXPECT_FALSE(asks_again(not_held, kNoAgent));
}

TEST_F(PatienceTest, AJobOfManyNodesIsWaitedForAsLongAsItRunsWithoutACoordinator) {
  Patience patience(job_with(0, 4));

  EXPECT_TRUE(asks_again(patience, kNobodyLeads));
  EXPECT_TRUE(asks_again(patience, kNoAgent, 74s));
  EXPECT_FALSE(asks_again(patience, kNobodyLeads, 75s));
}

TEST_F(PatienceTest, AfterAnAnswerTheNextWaitHasItsWholeTimeAndItsNotice) {
  Patience patience(30s);
  ASSERT_TRUE(asks_again(patience, kNobodyLeads));
  patience.answered();
  notice_.clear();

  EXPECT_TRUE(asks_again(patience, kNobodyLeads, 40s));
  EXPECT_THAT(notice_, HasSubstr("up to 30 s"));
}

TEST_F(PatienceTest, OtherErrorsAreAnswers) {
  Patience patience(job_with(60, 4));

  EXPECT_FALSE(asks_again(patience, Error(ErrorCode::kJobUnknown, "no such job")));
  EXPECT_FALSE(asks_again(patience, Error(ErrorCode::kInvalidArgument, "nodes")));
}

}  // namespace
}  // namespace accel::cluster::patience_test
