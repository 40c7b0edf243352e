#include "agent/jobs/event_diary.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

namespace accel::agent::event_diary_test {
namespace {

using namespace std::chrono_literals;
using ::testing::StartsWith;

class EventDiaryTest : public ::testing::Test {
 protected:
  EventDiaryTest() {
    job_.set_job_id("train");
    job_.set_job_uuid("u1");
    job_.set_user("ann");
    job_.set_state(v1::JOB_STATE_RUNNING);
    job_.set_generation(2);
    job_.set_restarts(2);
  }
  // The last line.
  [[nodiscard]] nlohmann::json last() const { return nlohmann::json::parse(lines_.back()); }

  std::vector<std::string> lines_;
  EventDiary diary_{"here",
                    [this](std::string line) { lines_.push_back(std::move(line)); },
                    [] {
                      return EventMoment{
                          .wall = std::chrono::system_clock::time_point(1'700'000'000'000'042us),
                          .mono = 7s};
                    }};
  v1::Job job_;
  const EventSubject subject_{
      .job_id = "train", .job_uuid = "u1", .generation = 2, .first_rank = 8};
};

TEST_F(EventDiaryTest, ALineBeginsWithTheKeyByWhichItIsJoined) {
  diary_.job_changed(job_);
  EXPECT_THAT(lines_.at(0),
              StartsWith(R"({"seq":1,"wall":"2023-11-14T22:13:20.000042Z","mono_ns":7000000000,)"
                         R"("node":"here","event":"job","job":"train","job_uuid":"u1",)"
                         R"("generation":2,"user":"ann","state":"running","restarts":2,)"));
}

TEST_F(EventDiaryTest, AJobIsToldOnceForEachChange) {
  diary_.job_changed(job_);
  job_.set_report("a longer report");
  diary_.job_changed(job_);
  EXPECT_EQ(lines_.size(), 1U);

  job_.set_state(v1::JOB_STATE_FAILED);
  job_.set_exit_code(3);
  job_.set_reason("failed");
  diary_.job_changed(job_);
  ASSERT_EQ(lines_.size(), 2U);
  EXPECT_EQ(last()["state"], "failed");
  EXPECT_EQ(last()["exit_code"], 3);
  EXPECT_EQ(last()["seq"], 2);
}

TEST_F(EventDiaryTest, NamesTheWorkerThatEnded) {
  supervisor::WorkerExit exit;
  exit.global_rank = 9;
  exit.local_rank = 1;
  exit.generation = 2;
  exit.pid = 77;
  exit.cause = supervisor::ExitCause::kSignaled;
  exit.signal = 11;
  exit.step = 41;
  diary_.heard(subject_, exit);

  EXPECT_EQ(last()["event"], "worker_ended");
  EXPECT_EQ(last()["rank"], 9);
  EXPECT_EQ(last()["local_rank"], 1);
  EXPECT_EQ(last()["cause"], "signaled");
  EXPECT_EQ(last()["signal"], 11);
  EXPECT_EQ(last()["step"], 41);
}

TEST_F(EventDiaryTest, WritesNothingOfWhatIsNoEvent) {
  diary_.heard(subject_, supervisor::Snapshot{});
  diary_.heard(subject_, supervisor::Hello{});
  EXPECT_TRUE(lines_.empty());
}

TEST_F(EventDiaryTest, TextOfOthersStaysOneLineOfValidJson) {
  diary_.heard(subject_, supervisor::Notice{.text = "a\"b\nc\x1b\xff"});
  EXPECT_EQ(lines_.at(0).find('\n'), std::string::npos);
  EXPECT_EQ(last()["text"], "a\"b\nc??");
}

TEST_F(EventDiaryTest, TellsWhatTheCoordinatorReports) {
  diary_.reported(
      {.kind = ReportKind::kNodeLost, .job_uuid = "", .node_id = "b", .text = "silent"}, {}, "");
  EXPECT_EQ(last()["event"], "node_lost");
  EXPECT_EQ(last()["about_node"], "b");
  EXPECT_FALSE(last().contains("job"));

  diary_.reported({.kind = ReportKind::kJobPhase, .job_uuid = "u1", .node_id = "", .text = "go"},
                  subject_,
                  "running");
  EXPECT_EQ(last()["job"], "train");
  EXPECT_EQ(last()["state"], "running");
}

}  // namespace
}  // namespace accel::agent::event_diary_test
