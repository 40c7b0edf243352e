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

}  // namespace
}  // namespace accel::agent::named_job_test
