// Jobs that are followed to their end; `aws` is a script. What is asked of it: tests/peer/sagemaker_request.py.

#include "launcher/start/sagemaker/submission.h"

#include <fstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/scratch_folder.h"

namespace accel::launcher::submission_test {
namespace {

using test::ScratchFolder;
using ::testing::AllOf;
using ::testing::HasSubstr;

// Says the statuses one after the other, the last one again and again. As the real one, its wait gives up (255) with a job that
// is not at its end.
constexpr const char* kAws = R"sh(#!/bin/sh
here=${0%/*}
{ read -r status; read -r next; } < "$here/statuses"
case "$1 $2" in
  "sts get-caller-identity") echo 123456789012 ;;
  "sagemaker wait") echo wait >> "$here/waits"; [ "$status" = Completed ] || exit 255 ;;
  "sagemaker describe-training-job")
    printf '%s\ts3://bucket/model.tar.gz\tNone\n' "$status"
    [ -z "$next" ] || sed -i 1d "$here/statuses" ;;
esac
)sh";

class SubmissionTest : public ::testing::Test {
 protected:
  Result<int> submit_with(const std::string& statuses) {
    folder_.write("aws", kAws, /*is_executable=*/true);
    folder_.write("statuses", statuses);
    Submission submission;
    submission.job.config.instance_type = "ml.p3.2xlarge";
    submission.job.config.role = "arn:aws:iam::1:role/mine";
    submission.job.config.image = "123.dkr.ecr/image:1";
    submission.job.script = folder_.write("code/train.py", "print(1)\n");
    submission.environment = {{"PATH", folder_.path().string() + ":/usr/bin:/bin"},
                              {"TMPDIR", folder_.file("missing")}};
    ::testing::internal::CaptureStdout();
    const auto status = submit(submission);
    said_ = ::testing::internal::GetCapturedStdout();
    return status;
  }
  [[nodiscard]] int num_waits() const {
    std::ifstream file(folder_.file("waits"));
    int number = 0;
    for (std::string line; std::getline(file, line);) ++number;
    return number;
  }

  ScratchFolder folder_;
  std::string said_;
};

// It gives up after six hours; a job may have days.
TEST_F(SubmissionTest, AWaitThatGivesUpBeginsAgainUntilTheJobHasEnded) {
  const auto status = submit_with("InProgress\nStopping\nInProgress\nCompleted\n");

  ASSERT_TRUE(status) << status.error().what();
  EXPECT_EQ(*status, 0);
  EXPECT_EQ(num_waits(), 4);
  EXPECT_THAT(said_, HasSubstr("model data at: s3://bucket/model.tar.gz"));
}

TEST_F(SubmissionTest, AJobThatFailedIsNotWaitedForAgain) {
  const auto status = submit_with("InProgress\nFailed\n");

  ASSERT_FALSE(status);
  EXPECT_THAT(status.error().message(), HasSubstr("ended as Failed"));
  EXPECT_EQ(num_waits(), 2);
}

TEST_F(SubmissionTest, AWaitThatNeverWorksHasAnEnd) {
  const auto status = submit_with("InProgress\n");

  ASSERT_FALSE(status);
  EXPECT_THAT(status.error().message(), AllOf(HasSubstr("is still InProgress"), HasSubstr("255")));
  EXPECT_FALSE(status.error().remedy().empty());
}

}  // namespace
}  // namespace accel::launcher::submission_test
