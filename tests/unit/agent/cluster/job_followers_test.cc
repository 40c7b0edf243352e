// When those who wait for a change are told.

#include "agent/cluster/job_followers.h"

#include <memory>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/virtual_cluster.h"

namespace accel::agent::job_followers_test {
namespace {

using ::testing::HasSubstr;

struct Asked {
  v1::ChangesReq request;
  v1::JobChanges answer;
  int num_finished = 0;
  Result<void> result;
};

class JobFollowersTest : public ::testing::Test {
 protected:
  JobFollowersTest() {
    state_.epoch = 3;
    Job& job = state_.jobs["j"];
    job.description = std::make_shared<const JobDescription>(test::small_job(1, 1));
    job.phase = JobPhase::kGathering;
  }

  // Time is none of these tests': looks are free, and nobody waits long enough.
  std::unique_ptr<JobFollowers> make(std::chrono::milliseconds hold = std::chrono::hours(1)) {
    return std::make_unique<JobFollowers>(
        loop_,
        [this] { return is_leading_ ? &state_ : nullptr; },
        JobFollowers::Pace{.look_every = std::chrono::milliseconds(0), .hold = hold});
  }

  std::unique_ptr<Asked> ask(JobFollowers& followers,
                             const std::string& caller,
                             const v1::ViewRevision& since) {
    auto asked = std::make_unique<Asked>();
    *asked->request.mutable_since() = since;
    (since.log() == 0 ? asked->request.add_fresh() : asked->request.add_jobs())->assign("j");
    followers.ask({.role = Role::kNode, .name = caller},
                  asked->request,
                  asked->answer,
                  [to = asked.get()](const Result<void>& result) {
                    ++to->num_finished;
                    to->result = result;
                  });
    return asked;
  }

  // The wait that is given up for it comes before.
  void run_look() {
    loop_.run_one();
    loop_.run_one();
  }

  v1::ViewRevision know(JobFollowers& followers) {
    const auto first = ask(followers, "first", {});
    EXPECT_EQ(first->num_finished, 1);
    EXPECT_EQ(first->answer.jobs_size(), 1);
    return first->answer.now();
  }

  boost::asio::io_context loop_{1};
  State state_;
  bool is_leading_ = true;
};

TEST_F(JobFollowersTest, WhoKnowsTheJobIsAnsweredWhenItChanges) {
  const auto followers = make();
  const auto asked = ask(*followers, "a", know(*followers));
  EXPECT_EQ(asked->num_finished, 0);

  state_.jobs["j"].phase = JobPhase::kRunning;
  followers->change();
  run_look();

  EXPECT_EQ(asked->num_finished, 1);
  ASSERT_EQ(asked->answer.jobs_size(), 1);
  EXPECT_EQ(asked->answer.jobs(0).job().state(), v1::JOB_STATE_RUNNING);
  EXPECT_EQ(followers->num_waiting(), 0u);
}

TEST_F(JobFollowersTest, AChangeOfAnotherJobEndsNoWaiting) {
  const auto followers = make();
  const auto asked = ask(*followers, "a", know(*followers));

  state_.jobs["other"] = state_.jobs["j"];
  followers->change();
  run_look();

  EXPECT_EQ(asked->num_finished, 0);
  EXPECT_EQ(followers->num_waiting(), 1u);
}

TEST_F(JobFollowersTest, WhoHasWaitedLongEnoughIsAnsweredWithoutNews) {
  const auto followers = make(std::chrono::milliseconds(0));
  const auto asked = ask(*followers, "a", know(*followers));

  loop_.run_one();

  EXPECT_EQ(asked->num_finished, 1);
  EXPECT_TRUE(asked->result);
  EXPECT_FALSE(has_news(asked->answer));
}

TEST_F(JobFollowersTest, TheNextQuestionOfACallerEndsTheOneBefore) {
  const auto followers = make();
  const v1::ViewRevision since = know(*followers);
  const auto before = ask(*followers, "a", since);
  const auto other = ask(*followers, "b", since);

  const auto next = ask(*followers, "a", since);

  EXPECT_EQ(before->num_finished, 1);
  EXPECT_EQ(other->num_finished, 0);
  EXPECT_EQ(next->num_finished, 0);
  EXPECT_EQ(followers->num_waiting(), 2u);
}

TEST_F(JobFollowersTest, AJobThatWasJustAcceptedIsThere) {
  const auto followers = make();
  (void)know(*followers);
  state_.jobs["new"] = state_.jobs["j"];
  followers->change();

  Asked asked;
  asked.request.add_fresh("new");
  followers->ask(
      {.role = Role::kNode, .name = "a"}, asked.request, asked.answer, [&](const Result<void>&) {
        ++asked.num_finished;
      });

  EXPECT_EQ(asked.num_finished, 1);
  EXPECT_EQ(asked.answer.jobs_size(), 1);
  EXPECT_EQ(asked.answer.gone_size(), 0);
}

TEST_F(JobFollowersTest, TheEndOfTheReignEndsAllAndTheNextOneTellsEverything) {
  const auto followers = make();
  const v1::ViewRevision since = know(*followers);
  const auto asked = ask(*followers, "a", since);

  is_leading_ = false;
  followers->end(Error(ErrorCode::kCoordinatorLost, "another one leads"));

  ASSERT_FALSE(asked->result);
  EXPECT_THAT(asked->result.error().message(), HasSubstr("another one leads"));
  const auto refused = ask(*followers, "a", since);
  ASSERT_FALSE(refused->result);
  EXPECT_EQ(refused->result.error().code(), ErrorCode::kCoordinatorLost);
  is_leading_ = true;
  const auto again = ask(*followers, "a", since);
  EXPECT_TRUE(again->answer.is_whole());
  EXPECT_EQ(again->answer.jobs_size(), 1);
}

}  // namespace
}  // namespace accel::agent::job_followers_test
