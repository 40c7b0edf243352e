#include "launcher/flags/flag_spelling.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace accel::launcher::flag_spelling_test {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

std::string for_torchrun(std::string_view text) {
  return respelled(text, Program::kTorchrun);
}

TEST(FlagSpelling, AccelLaunchSpeaksAsTheCodeDoes) {
  const std::string text = "give --main_process_port (--master-port), or leave --log_dir out";
  EXPECT_EQ(respelled(text, Program::kLaunch), text);
}

TEST(FlagSpelling, AccelTorchrunSpeaksTorchrunsWords) {
  EXPECT_EQ(for_torchrun("--main_process_port is 0, name the folder with --log_dir"),
            "--master-port is 0, name the folder with --log-dir");
  EXPECT_EQ(for_torchrun("`--fsdp_version=2` ('--machine_rank')"),
            "`--fsdp-version=2` ('--node-rank')");
  EXPECT_EQ(for_torchrun("--max_restarts"), "--max-restarts");
}

TEST(FlagSpelling, AFlagThatIsNamedTwiceIsNamedOnce) {
  EXPECT_EQ(for_torchrun("give --main_process_port (--master-port), or 0"),
            "give --master-port, or 0");
  EXPECT_EQ(for_torchrun("give --main_process_port (another)"), "give --master-port (another)");
}

TEST(FlagSpelling, LeavesWhatIsNoFlagOfOurs) {
  for (const char* text : {"unknown flag --my_flag",
                           "cannot read /data/run--log_dir/config.yaml",
                           "--log_dir-of-mine",
                           "a -- b, --",
                           "--log_directory"}) {
    EXPECT_EQ(for_torchrun(text), text);
  }
}

TEST(FlagSpelling, TheProcessesOfAllMachinesHaveNoOtherName) {
  const std::string text = "give the same --num_processes on every machine";
  EXPECT_EQ(for_torchrun(text), text);
}

TEST(FlagSpelling, EveryDefaultRemedyCanBeSaidToUsersOfTorchrun) {
  for (int code = 0; code < static_cast<int>(ErrorCode::kCount_); ++code) {
    const ErrorInfo& info = error_info(static_cast<ErrorCode>(code));
    EXPECT_THAT(for_torchrun(info.remedy), Not(::testing::ContainsRegex("--[a-z]+_"))) << info.id;
  }
}

TEST(FlagSpelling, OfAnErrorAllButWhatOthersSaid) {
  Error error(ErrorCode::kLogUnwritable, "no --log_dir", "name --log_dir");
  error.while_doing("reading --log_dir").with_detail("also", "--gpu_ids is empty");
  error.with_detail("cause", "train.py has no --log_dir");

  const std::string text = rendered(error, "accel-torchrun");

  EXPECT_THAT(text,
              HasSubstr("accel-torchrun: error [" + std::string(error_info(error.code()).id)));
  for (const char* part : {"no --log-dir",
                           "name --log-dir",
                           "reading --log-dir",
                           "--gpu-ids is empty",
                           "train.py has no --log_dir"})
    EXPECT_THAT(text, HasSubstr(part));
  EXPECT_EQ(rendered(error, "accel-launch"), error.render("accel-launch"));
}

}  // namespace
}  // namespace accel::launcher::flag_spelling_test
