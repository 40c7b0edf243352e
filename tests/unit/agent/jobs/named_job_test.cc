#include "agent/jobs/named_job.h"

#include <gmock/gmock.h>

namespace accel::agent::named_job_test {
namespace {

using ::testing::HasSubstr;

constexpr uid_t kAnn = 7001;
constexpr uid_t kBob = 7002;
const std::string kUuid(32, 'a');

v1::Job job_of(const std::string& id, const std::string& uuid, uid_t uid) {
  v1::Job job;
  job.set_job_id(id);
  job.set_job_uuid(uuid);
  job.set_uid(uid);
  job.set_user(uid == kAnn ? "ann" : "bob");
  return job;
}

bool everything(const v1::Job&) {
  return true;
}

// A user's second job with the name of the uuid of the first made both ambiguous for operators, and took the stops of the user.
TEST(NamedJob, NoNameShieldsTheJobWhoseUuidItIs) {
  const v1::Job first = job_of("train", kUuid, kAnn);
  const v1::Job shield = job_of(kUuid, "u2", kAnn);

  for (const auto& own : {std::optional<uid_t>(), std::optional<uid_t>(kAnn)}) {
    EXPECT_EQ(*find_named({&first, &shield}, kUuid, own, everything), &first);
    EXPECT_EQ(*find_named({&shield, &first}, kUuid, own, everything), &first);
  }
}

TEST(NamedJob, ANameIsTheUsersOwnElseThatOfTheOnlyOneWhoHasIt) {
  const v1::Job anns = job_of("train", "u1", kAnn);
  const v1::Job bobs = job_of("train", "u2", kBob);

  EXPECT_EQ(*find_named({&anns, &bobs}, "train", kBob, everything), &bobs);
  EXPECT_EQ(*find_named({&anns}, "train", kBob, everything), &anns);
  const auto ambiguous = find_named({&anns, &bobs}, "train", std::nullopt, everything);
  ASSERT_FALSE(ambiguous);
  EXPECT_THAT(ambiguous.error().render(), HasSubstr("ann (u1)"));
}

TEST(NamedJob, AJobThatOneMayNotSeeIsUnknownByItsUuidToo) {
  const v1::Job anns = job_of("train", kUuid, kAnn);
  const auto is_bobs = [](const v1::Job& job) { return job.uid() == kBob; };

  for (const std::string& named : {std::string("train"), kUuid})
    EXPECT_EQ(find_named({&anns}, named, kBob, is_bobs).error().code(), ErrorCode::kJobUnknown);
}

NamedJob train_of(std::string_view user, std::string_view uuid, std::int64_t order) {
  return {.uuid = uuid, .name = "train", .user = user, .is_own = user == "ann", .order = order};
}

NamedJob ended(NamedJob job) {
  job.has_ended = true;
  return job;
}

TEST(NamedJob, OfOnesOwnJobsOfANameTheNewestThatHasNotEndedIsMeant) {
  const NamedJob old = train_of("ann", "u1", 1);
  const NamedJob middle = train_of("ann", "u2", 2);
  const NamedJob latest = train_of("ann", "u3", 3);

  EXPECT_EQ(*choose_named({old, latest, middle}, "train"), 1U);
  EXPECT_EQ(*choose_named({old, ended(latest), middle}, "train"), 2U);
  EXPECT_EQ(*choose_named({ended(latest), old, ended(middle)}, "train"), 1U);
}

TEST(NamedJob, OfOnesOwnJobsThatHaveAllEndedTheNewestIsMeant) {
  const NamedJob old = ended(train_of("ann", "u1", 1));
  const NamedJob latest = ended(train_of("ann", "u2", 2));

  EXPECT_EQ(*choose_named({old, latest}, "train"), 1U);
  EXPECT_EQ(*choose_named({latest, old}, "train"), 0U);
}

TEST(NamedJob, AnOwnJobThatHasEndedStandsBeforeOneOfAnotherUserThatRuns) {
  EXPECT_EQ(*choose_named({train_of("bob", "u1", 2), ended(train_of("ann", "u2", 1))}, "train"),
            1U);
}

TEST(NamedJob, SeveralJobsOfTheOnlyOtherUserAreChosenFromAsOnesOwnAre) {
  const NamedJob latest = ended(train_of("bob", "u1", 2));
  const NamedJob running = train_of("bob", "u2", 1);

  EXPECT_EQ(*choose_named({latest, running}, "train"), 1U);
}

TEST(NamedJob, TwoOtherUsersWithTheNameAreAmbiguousAndEachIsNamedOnceWithItsJob) {
  const auto chosen = choose_named(
      {train_of("bob", "u1", 1), train_of("bob", "u2", 2), train_of("eve", "u3", 3)}, "train");

  ASSERT_FALSE(chosen);
  EXPECT_EQ(chosen.error().code(), ErrorCode::kInvalidArgument);
  EXPECT_THAT(chosen.error().render(), HasSubstr("2 jobs are named 'train': bob (u2), eve (u3)"));
}

TEST(NamedJob, JobsWhoseUserIsNotKnownAreNotTakenForJobsOfOneUser) {
  const auto chosen = choose_named({train_of("", "u1", 1), train_of("", "u2", 2)}, "train");

  ASSERT_FALSE(chosen);
  EXPECT_THAT(chosen.error().render(), HasSubstr("(u1)"));
}

TEST(NamedJob, AUuidStandsBeforeOnesOwnNewerJobOfThatName) {
  NamedJob shield = train_of("ann", "u1", 9);
  shield.name = kUuid;
  const NamedJob meant = train_of("bob", kUuid, 1);

  EXPECT_EQ(*choose_named({shield, meant}, kUuid), 1U);
}

TEST(NamedJob, ANameThatNoJobHasIsUnknown) {
  EXPECT_EQ(choose_named({}, "train").error().code(), ErrorCode::kJobUnknown);
  EXPECT_EQ(choose_named({train_of("ann", "u1", 1)}, "tra").error().code(), ErrorCode::kJobUnknown);
}

}  // namespace
}  // namespace accel::agent::named_job_test
