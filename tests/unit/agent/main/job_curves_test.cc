// Curves of jobs, read by a program as the job's user; here the program is a script.

#include "agent/main/job_curves.h"

#include <chrono>
#include <filesystem>
#include <string>
#include <vector>

#include <boost/asio/executor_work_guard.hpp>
#include <gmock/gmock.h>
#include <unistd.h>

#include "tests/support/scratch_folder.h"

namespace accel::agent::job_curves_test {
namespace {

namespace fs = std::filesystem;
using namespace std::chrono_literals;
using testing::AllOf;
using testing::Each;
using testing::HasSubstr;

class JobCurvesTest : public testing::Test {
 protected:
  // A program that is this shell script.
  std::string program(const std::string& text) {
    folder_.write("accel", "#!/bin/sh\n" + text + "\n");
    fs::permissions(folder_.file("accel"), fs::perms::owner_all);
    return folder_.file("accel");
  }
  void ask(JobCurves& curves, const std::string& path) {
    curves.read({::geteuid(), path}, [this](const std::string& json) { told_.push_back(json); });
  }
  void run_until_told(std::size_t count) {
    while (told_.size() < count) loop_.run_one();
  }

  const test::ScratchFolder folder_;
  boost::asio::io_context loop_;
  boost::asio::executor_work_guard<boost::asio::io_context::executor_type> stays_{
      loop_.get_executor()};
  FileReaders files_{loop_};
  std::vector<std::string> told_;
};

TEST_F(JobCurvesTest, AreWhatTheProgramSaysOfTheFolder) {
  JobCurves curves(loop_, files_, {.program = program(R"(echo "[\"$*\"]")")});
  ask(curves, "/runs/a b");
  run_until_told(1);
  EXPECT_EQ(told_[0], "[\"plot --json -- /runs/a b\"]\n");
}

TEST_F(JobCurvesTest, AreReadOnceForAllWhoAskMeanwhileAndAnewAfterwards) {
  JobCurves curves(
      loop_, files_, {.program = program("echo x >> " + folder_.file("looks") + "; echo '{}'")});
  for (int i = 0; i < 3; ++i) ask(curves, "/runs");
  run_until_told(3);
  EXPECT_THAT(told_, Each("{}\n"));
  EXPECT_EQ(fs::file_size(folder_.file("looks")), 2u);
  ask(curves, "/runs");
  run_until_told(4);
  EXPECT_EQ(fs::file_size(folder_.file("looks")), 4u);
}

TEST_F(JobCurvesTest, AreANoticeWhereTheProgramFailsOrSaysSomethingElse) {
  JobCurves failing(loop_, files_, {.program = program("echo '{}'; exit 3")});
  ask(failing, "/runs");
  run_until_told(1);
  EXPECT_THAT(told_[0], HasSubstr("`accel plot --json` ended with 3"));
  JobCurves hostile(loop_, files_, {.program = program("echo '{\"panels\": <script>'")});
  ask(hostile, "/runs");
  run_until_told(2);
  EXPECT_THAT(told_[1], HasSubstr("the curves are not read: `accel plot --json` ended with 0"));
  JobCurves missing(loop_, files_, {.program = "/nowhere/accel"});
  ask(missing, "/runs");
  run_until_told(3);
  EXPECT_THAT(told_[2], HasSubstr("accel cannot be started (execve: No such file"));
}

TEST_F(JobCurvesTest, AreGivenUpWhereReadingThemDoesNotEnd) {
  JobCurves curves(loop_, files_, {.program = program("exec sleep 1000"), .look_limit = 1ms});
  ask(curves, "/runs");
  run_until_told(1);
  EXPECT_THAT(told_[0], AllOf(HasSubstr("reading /runs took longer than"), HasSubstr("panels")));
}

TEST_F(JobCurvesTest, AreANoticeWhereNobodySaidWhereTheJobLogs) {
  JobCurves curves(loop_, files_, {.program = "/nowhere/accel"});
  ask(curves, "");
  ASSERT_EQ(told_.size(), 1u);
  EXPECT_THAT(told_[0], HasSubstr("give --tracking_dir to accel run"));
}

}  // namespace
}  // namespace accel::agent::job_curves_test
