// CLI10 to CLI15 of the contract: what the peer would run.

#include "launcher/commands/tpu_command.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <accel/error.h>

namespace accel::launcher::tpu_command_test {
namespace {

using ::testing::HasSubstr;

std::string line_of(const TpuRequest& request, const std::vector<std::string>& lines = {}) {
  const auto words = gcloud_words(request, lines);
  if (!words) return words.error().message();
  std::string line;
  for (const std::string& word : *words) line += (line.empty() ? "" : " ") + word;
  return line;
}

ConfigValue::Map file(const std::string& yaml) {
  auto document = parse_config(yaml, ConfigFormat::kYaml, "latest.yaml");
  EXPECT_TRUE(document);
  return *std::move(document);
}

constexpr const char* kLatest =
    "tpu_name: test-tpu\ntpu_zone: us-central1-a\ncommands: null\ncommand_file: commands.sh\n";

TEST(TpuCommand, RunsACommandOnAllWorkers) {
  TpuRequest request{
      .tpu_name = "test-tpu", .tpu_zone = "us-central1-a", .command_file = "", .commands = {"ls"}};
  EXPECT_EQ(line_of(request),
            "gcloud compute tpus tpu-vm ssh test-tpu --zone us-central1-a --command cd /usr/share; "
            "ls --worker all");
  request.use_alpha = true;
  EXPECT_THAT(line_of(request), HasSubstr("gcloud alpha compute tpus"));
}

TEST(TpuCommand, TakesWhatIsNotGivenFromTheFile) {
  const TpuRequest request = *with_defaults({}, file(kLatest));
  EXPECT_EQ(request.command_file, "commands.sh");
  EXPECT_EQ(line_of(request, {"echo \"hello world\"", "echo \"this is a second command\""}),
            "gcloud compute tpus tpu-vm ssh test-tpu --zone us-central1-a --command cd /usr/share; "
            "echo \"hello world\"; echo \"this is a second command\" --worker all");
  const TpuRequest listed = *with_defaults({}, file("commands: [ls, pwd]\n"));
  EXPECT_THAT(listed.commands, ::testing::ElementsAre("ls", "pwd"));
}

TEST(TpuCommand, WhatIsNoTextInTheFileIsRefused) {
  for (const std::string line : {"commands: [ls, {b: 1}]",
                                 "commands: [ls, null]",
                                 "tpu_name: [x]",
                                 "command_file: {a: b}"}) {
    const auto request = with_defaults({}, file("tpu_zone: z\n" + line + "\n"));
    ASSERT_FALSE(request) << line;
    EXPECT_THAT(request.error().message(), HasSubstr("line 2")) << line;
  }
}

TEST(TpuCommand, EmptyCommandsAreLeftOut) {
  EXPECT_THAT(
      line_of({.tpu_name = "t", .tpu_zone = "z", .command_file = "f"}, {"a", "", " \t", "b"}),
      HasSubstr("cd /usr/share; a; b --worker"));
  EXPECT_FALSE(gcloud_words({.tpu_name = "t", .tpu_zone = "z", .commands = {""}}, {}));
}

TEST(TpuCommand, ACommandThatIsGivenReplacesTheFilesOwn) {
  const TpuRequest one = *with_defaults({.commands = {"ls"}}, file(kLatest));
  EXPECT_THAT(line_of(one), HasSubstr("--command cd /usr/share; ls --worker"));
  const TpuRequest two =
      *with_defaults({.commands = {"ls", "echo \"Hello World\""}}, file(kLatest));
  EXPECT_THAT(line_of(two), HasSubstr("cd /usr/share; ls; echo \"Hello World\" --worker"));
}

TEST(TpuCommand, InstallsTheVersionThatIsAskedFor) {
  TpuRequest request{.tpu_name = "t",
                     .tpu_zone = "z",
                     .command_file = "",
                     .commands = {"ls"},
                     .install_accelerate = true};
  EXPECT_THAT(line_of(request), HasSubstr("cd /usr/share; pip install accelerate -U; ls"));
  request.accelerate_version = "12.0.0";
  EXPECT_THAT(line_of(request), HasSubstr("pip install accelerate==12.0.0; ls"));
  request.accelerate_version = "dev";
  EXPECT_THAT(line_of(request),
              HasSubstr("pip install git+https://github.com/huggingface/accelerate.git;"));
}

TEST(TpuCommand, SaysWhatIsMissing) {
  EXPECT_EQ(line_of({}), "You must specify either a command file or a command to run on the pod.");
  EXPECT_EQ(line_of({.commands = {"ls"}}), "the name of the TPU is not known");
  EXPECT_EQ(line_of({.tpu_name = "t", .tpu_zone = "", .command_file = "", .commands = {"ls"}}),
            "the zone of the TPU is not known");
}

}  // namespace
}  // namespace accel::launcher::tpu_command_test
