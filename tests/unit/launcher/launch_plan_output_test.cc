#include <filesystem>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "launcher/plan/launch_plan.h"
#include "tests/support/launch_plan_fixture.h"

namespace accel::launcher::launch_plan_output_test {
namespace {

using supervisor::Streams;
using ::testing::AllOf;
using ::testing::HasSubstr;

using LaunchPlanOutput = test::LaunchLineFixture;

TEST_F(LaunchPlanOutput, ErrorFilesHaveAPrivatePlaceWithoutALogFolder) {
  host_.private_base = "/run/user/7";

  EXPECT_EQ(plan({program_}).spec.log.error_dir,
            "/run/user/7/accel-" + plan({program_}).spec.job_id);
  EXPECT_EQ(plan({"--log_dir", folder_.file("logs"), program_}).spec.log.error_dir, "");
}

TEST_F(LaunchPlanOutput, LogFlagsFollowTorchrun) {
  const LaunchPlan per_rank = plan({"--num_processes",
                                    "2",
                                    "--log_dir",
                                    folder_.file("logs"),
                                    "--tee",
                                    "0:3",
                                    "-r",
                                    "1:1",
                                    program_});
  const LaunchPlan dir_only =
      plan({"--num_processes", "2", "--log_dir", folder_.file("logs"), program_});
  const LaunchPlan no_dir = plan({"--num_processes", "2", "--tee", "3", program_});

  EXPECT_EQ(per_rank.spec.workers[0].tee, Streams::kAll);
  EXPECT_EQ(per_rank.spec.workers[1].tee, Streams::kNone);
  EXPECT_EQ(per_rank.spec.workers[1].redirect, Streams::kOut);
  EXPECT_EQ(dir_only.spec.workers[1].tee, Streams::kAll);
  EXPECT_EQ(no_dir.spec.log.dir, "/tmp/accel_logs-" + host_.job_suffix);  // of this launch alone
  host_.environment["TMPDIR"] = ".";  // workers may go elsewhere
  EXPECT_THAT(plan({"--num_processes", "2", "--tee", "3", program_}).spec.log.dir,
              ::testing::StartsWith(std::filesystem::current_path().string() + "/accel_logs-"));
}

TEST_F(LaunchPlanOutput, TeedLinesAreNamedAsTorchrunDoes) {
  const auto log_of = [this](Words words) {
    words.insert(words.begin(), {"--num_processes", "2", "--log_dir", folder_.file("logs")});
    words.push_back(program_);
    return plan(words).spec.log;
  };
  EXPECT_EQ(log_of({"--tee", "3"}).prefix_template, "[${role_name}${local_rank}]:");
  EXPECT_FALSE(log_of({"--tee", "3"}).prefix);
  EXPECT_EQ(log_of({}).prefix_template, "");
  EXPECT_EQ(log_of({"--tee", "3", "--log_prefix"}).prefix_template, "");
  host_.environment["TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE"] = "<${rank}> ";
  EXPECT_EQ(log_of({"--tee", "1"}).prefix_template, "<${rank}> ");
  EXPECT_EQ(log_of({}).prefix_template, "");
}

TEST_F(LaunchPlanOutput, RotationIsForStreamsThatGoToFiles) {
  const std::string logs = folder_.file("logs");
  const auto rotation_of = [this](const std::vector<std::string>& arguments) {
    return plan(arguments).spec.log.rotation;
  };

  EXPECT_EQ(rotation_of({"--log_dir", logs, program_}).bytes, 0U);
  EXPECT_EQ(rotation_of({"--log_dir", logs, "--log_rotate_bytes", "64K", program_}).bytes, 65'536U);
  EXPECT_EQ(rotation_of({"--log_dir", logs, "--log_rotate_bytes", "1G", program_}).keep, 8);
  EXPECT_EQ(rotation_of({"-r", "3", "--log_rotate_bytes", "1G", "--log_keep", "2", program_}).keep,
            2);
  EXPECT_EQ(rotation_of({"--agent", "--log_rotate_bytes", "1G", program_}).bytes, 1U << 30);

  EXPECT_THAT(refused({"--log_rotate_bytes", "1M", program_}).render("accel"),
              AllOf(HasSubstr("no stream goes to one"), HasSubstr("--log_dir")));
  EXPECT_THAT(refused({"--log_dir", logs, "--log_keep", "2", program_}).remedy(),
              HasSubstr("--log_rotate_bytes"));
  for (const char* size : {"4095", "many", "-1", "1.5G", "99999999999G"}) {
    EXPECT_THAT(refused({"--log_dir", logs, "--log_rotate_bytes", size, program_}).message(),
                HasSubstr("expected 0 or 4096 bytes and more"));
  }
  EXPECT_THAT(refused({"--log_dir", logs, "--log_rotate_bytes", "1M", "--log_keep", "0", program_})
                  .message(),
              HasSubstr("--log_keep"));
}

TEST_F(LaunchPlanOutput, OverflowAndMergedStreamsReachTheWorkers) {
  const auto log_of = [this](const std::vector<std::string>& arguments) {
    return plan(arguments).spec.log;
  };

  EXPECT_EQ(log_of({program_}).overflow, supervisor::Overflow::kBlock);
  EXPECT_EQ(log_of({"--log_overflow", "drop", program_}).overflow, supervisor::Overflow::kDrop);
  EXPECT_EQ(log_of({"--log_overflow", "sample", program_}).overflow, supervisor::Overflow::kSample);
  EXPECT_FALSE(log_of({program_}).merge_stderr);
  EXPECT_TRUE(log_of({"--log_merge_stderr", "-r", "1", program_}).merge_stderr);

  EXPECT_THAT(refused({"--log_overflow", "lose", program_}).message(), HasSubstr("block"));
  EXPECT_THAT(refused({"--log_merge_stderr", "--tee", "2", program_}).message(),
              HasSubstr("leaves no stderr"));
}

TEST_F(LaunchPlanOutput, TheTerminalGoesToASingleWorker) {
  host_.stdin_is_terminal = host_.stdout_is_terminal = true;

  EXPECT_TRUE(plan({"--cpu", program_}).spec.console.foreground);
  EXPECT_TRUE(plan({"--num_processes", "2", program_}).spec.console.use_pty);
  EXPECT_FALSE(plan({"--num_processes", "2", "--no_pty", program_}).spec.console.use_pty);
  EXPECT_FALSE(plan({"--cpu", "--no_pty", program_}).spec.console.foreground);
}

TEST_F(LaunchPlanOutput, TheProgressLineIsAutomaticUnlessFlagOrEnvironmentSayMore) {
  const auto progress_of = [this](Words words) {
    words.insert(words.begin(), {"--cpu", "--num_processes", "2"});
    words.push_back(program_);
    return plan(words).progress;
  };
  EXPECT_EQ(progress_of({}), ProgressWhen::kAuto);
  EXPECT_EQ(progress_of({"--quiet"}), ProgressWhen::kOff);
  EXPECT_EQ(progress_of({"--progress_line", "on"}), ProgressWhen::kOn);

  host_.environment["ACCEL_PROGRESS_LINE"] = "off";
  EXPECT_EQ(progress_of({}), ProgressWhen::kOff);
  EXPECT_EQ(progress_of({"--progress_line", "auto"}), ProgressWhen::kAuto);
}

TEST_F(LaunchPlanOutput, TheProgressLineOfSeveralMachinesIsMachineZeros) {
  const auto plan_of = [this](const char* rank) {
    return plan({"--cpu",
                 "--progress_line",
                 "on",
                 "--num_machines",
                 "2",
                 "--num_processes",
                 "4",
                 "--machine_rank",
                 rank,
                 "--main_process_ip",
                 "10.0.0.1",
                 "--main_process_port",
                 "29500",
                 program_});
  };
  EXPECT_EQ(plan_of("0").progress, ProgressWhen::kOn);

  const LaunchPlan other = plan_of("1");
  EXPECT_EQ(other.progress, ProgressWhen::kOff);
  EXPECT_THAT(other.notices,
              ::testing::Contains("machine 0 shows the progress line, not this one"));
}

TEST_F(LaunchPlanOutput, AProgressLineThatCannotBeShownIsRefusedOnlyWhereItWasAskedFor) {
  host_.stdin_is_terminal = true;
  host_.stdout_is_terminal = true;
  EXPECT_EQ(plan({"--cpu", program_}).progress, ProgressWhen::kOff);
  EXPECT_THAT(refused({"--cpu", "--progress_line", "on", program_}).message(),
              HasSubstr("a worker alone has the terminal itself"));

  host_.environment["ACCEL_PROGRESS_LINE"] = "yes";
  EXPECT_THAT(refused({"--cpu", program_}).message(),
              HasSubstr("ACCEL_PROGRESS_LINE is 'yes', expected auto, on, off"));
}

}  // namespace
}  // namespace accel::launcher::launch_plan_output_test
