// What one user's jobs leave to those of others: room, names, and the places of ended jobs.

#include <algorithm>
#include <map>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "agent/coordinator/decisions/coordinator.h"
#include "tests/support/virtual_cluster.h"

namespace accel::agent::coordinator_users_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

CoordinatorConfig small() {
  CoordinatorConfig config;
  config.max_jobs = 4;
  config.max_jobs_each = 2;
  config.max_jobs_kept = 1;
  config.keep_ended_jobs = 3;
  return config;
}

// A coordinator that no node has come to; what it writes is written at once.
class Coordinator {
 public:
  explicit Coordinator(CoordinatorConfig config) : config_(config) {
    take(found(epoch_, config_, now_));
  }

  void tell(decltype(Event::what) what) {
    now_ += std::chrono::milliseconds(1);
    take(step(std::move(state_), {.at = now_, .chance = 0, .what = std::move(what)}));
  }

  // Why the job was refused; empty: it was not.
  std::string start(const std::string& user, const std::string& name, bool is_of_operator = false) {
    JobDescription job = test::small_job(1, 1);
    job.user = user;
    job.job_id = name;
    job.job_uuid = user + "-" + name;
    job.recruits = true;
    refusal_.clear();
    tell(StartJob{.request_id = job.job_uuid, .job = job, .is_of_operator = is_of_operator});
    return refusal_;
  }

  void stop(const std::string& uuid) { tell(StopJob{.job_uuid = uuid}); }

  // Another one takes over what this one has written.
  void change() {
    std::vector<Record> records;
    for (const auto& [key, value] : records_) records.push_back({key, value});
    auto next = recover(records, ++epoch_, config_, now_);
    ASSERT_TRUE(next) << next.error().what();
    take(*std::move(next));
  }

  [[nodiscard]] std::vector<std::string> jobs() const {
    std::vector<std::string> uuids;
    for (const auto& [uuid, job] : state_.jobs) uuids.push_back(uuid);
    return uuids;
  }

 private:
  void take(Step step) {
    state_ = std::move(step.state);
    for (const Action& action : step.actions) {
      if (const auto* reply = std::get_if<JobReply>(&action); reply && !reply->accepted) {
        refusal_ = reply->message;
      }
      const auto* persist = std::get_if<Persist>(&action);
      if (persist == nullptr) continue;
      records_[persist->record.key] = persist->record.value;
      if (persist->record.value.empty()) records_.erase(persist->record.key);
      tell(Persisted{.ticket = persist->ticket, .ok = true});
    }
  }

  CoordinatorConfig config_;
  std::uint64_t epoch_ = 1;
  TimePoint now_{std::chrono::seconds(1)};
  State state_;
  std::map<std::string, std::string> records_;
  std::string refusal_;
};

TEST(CoordinatorUsers, Fault64AUserWithManyJobsLeavesRoomToOthers) {
  Coordinator coordinator(small());

  EXPECT_EQ(coordinator.start("ann", "1"), "");
  EXPECT_EQ(coordinator.start("ann", "2"), "");
  EXPECT_THAT(coordinator.start("ann", "3"), HasSubstr("ann: it has 2 jobs"));
  EXPECT_EQ(coordinator.start("bob", "1"), "");

  coordinator.stop("ann-1");
  EXPECT_THAT(coordinator.start("ann", "3"), IsEmpty());
}

TEST(CoordinatorUsers, Fault64AnyNumberOfUsersLeaveRoomForWhatOperatorsSubmit) {
  Coordinator coordinator(small());
  for (const char* user : {"ann", "bob", "cid"}) EXPECT_EQ(coordinator.start(user, "1"), "");

  EXPECT_THAT(coordinator.start("dan", "1"), HasSubstr("3 jobs in all"));
  EXPECT_EQ(coordinator.start("dan", "1", /*is_of_operator=*/true), "");
  EXPECT_THAT(coordinator.start("dan", "2", /*is_of_operator=*/true), HasSubstr("4 jobs in all"));
}

TEST(CoordinatorUsers, Fault64ATakeOverKeepsWhoHasHowMany) {
  Coordinator coordinator(small());
  EXPECT_EQ(coordinator.start("ann", "1"), "");
  EXPECT_EQ(coordinator.start("ann", "2"), "");

  coordinator.change();

  EXPECT_THAT(coordinator.start("ann", "3"), HasSubstr("ann: it has 2 jobs"));
  EXPECT_EQ(coordinator.start("bob", "3"), "");
}

TEST(CoordinatorUsers, Fault64EndedJobsDisplaceThoseOfTheirOwnUserAlone) {
  Coordinator coordinator(small());
  const auto run = [&](const std::string& user, const std::string& name) {
    EXPECT_EQ(coordinator.start(user, name), "");
    coordinator.stop(user + "-" + name);
  };
  run("bob", "1");

  for (const char* name : {"1", "2", "3", "4", "5"}) run("ann", name);
  EXPECT_EQ(coordinator.start("ann", "6"), "");

  EXPECT_THAT(coordinator.jobs(), ElementsAre("ann-4", "ann-5", "ann-6", "bob-1"));
  coordinator.change();
  EXPECT_THAT(coordinator.jobs(), ElementsAre("ann-4", "ann-5", "ann-6", "bob-1"));
}

TEST(CoordinatorUsers, Fault68ANameIsAUsersOwn) {
  Coordinator coordinator(small());

  EXPECT_EQ(coordinator.start("ann", "train"), "");
  EXPECT_EQ(coordinator.start("bob", "train"), "");

  coordinator.change();
  EXPECT_THAT(coordinator.jobs(), ElementsAre("ann-train", "bob-train"));
  EXPECT_EQ(coordinator.start("cid", "train"), "");
}

}  // namespace
}  // namespace accel::agent::coordinator_users_test
