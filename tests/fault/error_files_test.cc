// What a worker writes into its error file reaches the report without a log folder, and the folder it
// lies in is private and goes with the job, whoever is killed (faults 1 and 27 of docs/reference/faults.md).

#include <csignal>
#include <filesystem>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include "tests/support/fault_job.h"
#include "tests/support/scratch_folder.h"

namespace accel::test::error_files_test {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

class ErrorFiles : public ::testing::Test {
 protected:
  // The launcher makes its private folder below the scratch folder of the test.
  std::vector<std::string> launch_arguments(const std::string& script) const {
    return {"--num_processes", "2", "--no_python", "/bin/sh", "-c", script, token_};
  }

  std::vector<std::string> left() const {
    std::vector<std::string> names;
    for (const auto& entry : fs::directory_iterator(scratch_.path())) {
      names.push_back(entry.path().filename());
    }
    return names;
  }

  const std::string token_ = unique_token();
  const ScratchFolder scratch_;
  const EnvMap environment_ = {{"XDG_RUNTIME_DIR", scratch_.path()}};
};

constexpr const char* kAnnounce =
    "ls -ld \"$(dirname $TORCHELASTIC_ERROR_FILE)\"; echo ready; "
    "echo x >$TORCHELASTIC_ERROR_FILE; while :; do sleep 0.05; done";

TEST_F(ErrorFiles, Fault1ErrorOfAWorkerIsTheCauseInTheReport) {
  LaunchProcess launch(launch_arguments("echo '{\"message\": \"out of tokens\"}' "
                                        ">$TORCHELASTIC_ERROR_FILE; exit 3"),
                       token_,
                       environment_);

  EXPECT_EQ(launch.wait(), 3);
  EXPECT_THAT(launch.output(), HasSubstr("cause     out of tokens"));
  EXPECT_THAT(left(), IsEmpty());
}

TEST_F(ErrorFiles, Fault1LinkInTheirPlaceIsNotFollowed) {
  const std::string secret = scratch_.write("secret", R"({"message": "a secret"})");
  LaunchProcess launch(launch_arguments("ln -s " + secret + " $TORCHELASTIC_ERROR_FILE; exit 3"),
                       token_,
                       environment_);

  EXPECT_EQ(launch.wait(), 3);
  EXPECT_THAT(launch.output(), ::testing::Not(HasSubstr("a secret")));
  EXPECT_THAT(left(), ::testing::ElementsAre("secret"));
}

TEST_F(ErrorFiles, Fault27KillingTheLauncherLeavesNoFolder) {
  LaunchProcess launch(launch_arguments(kAnnounce), token_, environment_);
  ASSERT_THAT(launch.wait_for_lines("ready", 2), SizeIs(2));
  EXPECT_THAT(launch.wait_for_lines("drwx------ ", 2), SizeIs(2));
  EXPECT_THAT(left(), SizeIs(1));

  launch.signal(SIGKILL);

  EXPECT_EQ(launch.wait(), 128 + SIGKILL);
  EXPECT_TRUE(eventually([&] { return left().empty(); }));
}

TEST_F(ErrorFiles, Fault27KillingTheShimLeavesNoFolder) {
  LaunchProcess launch(launch_arguments(kAnnounce), token_, environment_);
  ASSERT_THAT(launch.wait_for_lines("ready", 2), SizeIs(2));

  ::kill(launch.shim(), SIGKILL);

  EXPECT_EQ(launch.wait(), error_info(ErrorCode::kShimLost).exit_status);
  EXPECT_THAT(left(), IsEmpty());
}

TEST_F(ErrorFiles, Fault27BothAreKilledAndTheNextJobRemovesTheFolder) {
  LaunchProcess launch(launch_arguments(kAnnounce), token_, environment_);
  ASSERT_THAT(launch.wait_for_lines("ready", 2), SizeIs(2));
  const pid_t shim = launch.shim();
  launch.signal(SIGSTOP);  // it does not outlive the shim
  ::kill(shim, SIGKILL);
  launch.signal(SIGKILL);
  ASSERT_EQ(launch.wait(), 128 + SIGKILL);
  ASSERT_THAT(left(), SizeIs(1));

  LaunchProcess next(launch_arguments("true"), token_, environment_);

  EXPECT_EQ(next.wait(), 0);
  EXPECT_THAT(left(), IsEmpty());
}

}  // namespace
}  // namespace accel::test::error_files_test
