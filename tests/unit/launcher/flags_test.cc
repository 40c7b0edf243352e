#include "launcher/flags/flags.h"

#include <algorithm>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "launcher/flags/flag_table.h"
#include "launcher/flags/launch_help.h"
#include "runtime/suggest.h"

namespace accel::launcher::flags_test {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::StartsWith;

using Words = std::vector<std::string>;

CommandLine parsed(const Words& words) {
  return or_throw(parse_command_line(words));
}

Error refused(const Words& words) {
  Result<CommandLine> line = parse_command_line(words);
  if (line) throw std::logic_error("the command line was accepted");
  return line.error();
}

TEST(Flags, HyphensAndUnderscoresAreEqual) {
  const CommandLine line =
      parsed({"--num-processes", "4", "--mixed_precision=bf16", "--no-python", "x"});

  EXPECT_EQ(line.text("num_processes"), "4");
  EXPECT_EQ(line.text("mixed_precision"), "bf16");
  EXPECT_TRUE(line.is_on("no_python"));
}

TEST(Flags, EverythingAfterTheScriptBelongsToIt) {
  const CommandLine line =
      parsed({"--cpu", "train.py", "--num_processes", "7", "--unknown", "--", "-x"});

  EXPECT_EQ(line.script, "train.py");
  EXPECT_FALSE(line.has("num_processes"));
  EXPECT_THAT(line.script_arguments, ElementsAre("--num_processes", "7", "--unknown", "--", "-x"));
}

TEST(Flags, OneDoubleDashRightAfterTheScriptIsDropped) {
  EXPECT_THAT(parsed({"digits", "--", "--epochs", "3"}).script_arguments,
              ElementsAre("--epochs", "3"));
  EXPECT_THAT(parsed({"digits", "--", "--", "x"}).script_arguments, ElementsAre("--", "x"));
}

TEST(Flags, ADoubleDashBeforeTheScriptEndsTheFlags) {
  const CommandLine line = parsed({"--cpu", "--", "train.py", "--lr", "1"});

  EXPECT_EQ(line.script, "train.py");
  EXPECT_THAT(line.script_arguments, ElementsAre("--lr", "1"));
}

TEST(Flags, TheLastOfARepeatedFlagHolds) {
  EXPECT_EQ(parsed({"--num_processes", "2", "--num-processes=3", "x"}).text("num_processes"), "3");
}

TEST(Flags, ShortFormsWork) {
  const CommandLine line = parsed({"-m", "-q", "-t", "3", "pkg.mod"});

  EXPECT_TRUE(line.is_on("module"));
  EXPECT_TRUE(line.is_on("quiet"));
  EXPECT_EQ(line.text("tee"), "3");
  EXPECT_EQ(line.script, "pkg.mod");
}

TEST(Flags, ArgumentsThatLookLikeListsStayWhole) {
  EXPECT_EQ(parsed({"--tee", "0:3,1:1", "x"}).text("tee"), "0:3,1:1");
  EXPECT_EQ(parsed({"--log_dir", "[a,b]", "x"}).text("log_dir"), "[a,b]");
}

TEST(Flags, NoScriptIsLeftToThePlan) {
  EXPECT_THAT(parsed({"--cpu"}).script, IsEmpty());
}

TEST(Flags, AnUnknownFlagIsRefusedWithTheNearestOne) {
  const Error error = refused({"--num_process", "2", "x"});

  EXPECT_EQ(error.code(), ErrorCode::kUnknownFlag);
  EXPECT_THAT(error.message(), HasSubstr("--num_process, did you mean --num_processes?"));
}

TEST(Flags, TheSuggestionKeepsTheSpellingOfTheUser) {
  EXPECT_THAT(refused({"--max-restart", "2", "x"}).message(), HasSubstr("--max-restarts?"));
}

TEST(Flags, AbbreviationsAreNotAccepted) {
  EXPECT_EQ(refused({"--num_proc", "2", "x"}).code(), ErrorCode::kUnknownFlag);
  EXPECT_EQ(refused({"--mixed", "bf16", "x"}).code(), ErrorCode::kUnknownFlag);
}

TEST(Flags, AMissingValueIsNamed) {
  EXPECT_THAT(refused({"--num_processes"}).message(), HasSubstr("--num_processes needs a value"));
  EXPECT_THAT(refused({"--log_dir=", "x"}).message(), HasSubstr("--log_dir= needs a value"));
}

TEST(Flags, ASwitchTakesTrueOrFalseAndRefusesOtherWords) {
  EXPECT_TRUE(parse_command_line({"--debug=yes", "p"})->is_on("debug"));
  EXPECT_FALSE(parse_command_line({"--debug", "--debug=false", "p"})->is_on("debug"));
  for (const char* word : {"--module=json.tool", "--debug=x", "--cpu=2", "--no-python=1.5"}) {
    const auto line = parse_command_line({word, "p"});
    ASSERT_FALSE(line) << word;
    EXPECT_EQ(line.error().code(), ErrorCode::kInvalidArgument);
    EXPECT_THAT(line.error().message(), HasSubstr("expected true or false"));
  }
}

TEST(Flags, HelpFitsEightyColumnsAndShowsOnlyUnderscores) {
  const std::string help = launch_help({}, "all");

  size_t start = 0;
  while (start < help.size()) {
    const size_t end = std::min(help.find('\n', start), help.size());
    EXPECT_LE(end - start, 80u) << help.substr(start, end - start);
    start = end + 1;
  }
  for (const FlagSpec& flag : flag_table()) {
    std::string hyphens(flag.name);
    std::replace(hyphens.begin(), hyphens.end(), '_', '-');
    if (hyphens == flag.name) continue;
    EXPECT_THAT(help, Not(HasSubstr("--" + hyphens)));
  }
  EXPECT_THAT(help, HasSubstr("--num_processes N"));
}

TEST(Flags, HelpLeavesOutStrategiesThatAreNotChosen) {
  EXPECT_THAT(launch_help({}, "all"), HasSubstr("--fsdp_version"));
  EXPECT_THAT(launch_help({{"multi_gpu", ""}}), Not(HasSubstr("--fsdp_version")));
  EXPECT_THAT(launch_help({{"multi_gpu", ""}}), HasSubstr("--max_restarts"));
  EXPECT_THAT(launch_help({{"use_fsdp", ""}}), HasSubstr("--fsdp_version"));
  EXPECT_THAT(launch_help({}, "all"), HasSubstr("--main_training_function"));
  EXPECT_THAT(launch_help({{"multi_gpu", ""}}),
              AllOf(Not(HasSubstr("--main_training_function")), Not(HasSubstr("--aws_"))));
  EXPECT_THAT(launch_help({{"tpu", ""}}), HasSubstr("--main_training_function"));
}

TEST(Flags, HelpShowsTheStrategyThatAValueChooses) {
  EXPECT_THAT(launch_help({{"help", ""}, {"mixed_precision", "fp8"}}),
              AllOf(HasSubstr("--fp8_backend"), Not(HasSubstr("--fsdp_version"))));
  EXPECT_THAT(launch_help({{"mixed_precision", "bf16"}}), Not(HasSubstr("--fp8_backend")));
}

std::size_t num_flags_in(const std::string& help) {
  std::size_t count = 0;
  for (const FlagSpec& flag : flag_table()) {
    const std::string name = "--" + std::string(flag.name);
    const bool is_shown = help.find("  " + name + "\n") != std::string::npos ||
                          help.find("  " + name + " ") != std::string::npos ||
                          help.find(", " + name + "\n") != std::string::npos ||
                          help.find(", " + name + " ") != std::string::npos;
    count += is_shown ? 1U : 0U;
  }
  return count;
}

TEST(Flags, HelpShowsWhatEverybodyNeedsAndNamesTheOtherGroups) {
  const std::string help = launch_help();

  EXPECT_GE(num_flags_in(help), 30U);
  EXPECT_LE(num_flags_in(help), 45U);
  EXPECT_EQ(num_flags_in(launch_help({}, "all")), flag_table().size());
  for (const FlagSpec& flag : flag_table()) {
    const std::string topic(topic_of(flag.group));
    const bool is_named = help.find("\n  " + topic + " ") != std::string::npos;
    EXPECT_NE(is_named, help.find("\n" + std::string(flag.group) + ":\n") != std::string::npos)
        << flag.group;
  }
}

TEST(Flags, HelpOfAGroupShowsItsFlagsAlone) {
  const std::string nodes = launch_help({}, "nodes");

  EXPECT_THAT(nodes, AllOf(StartsWith("Several nodes"), HasSubstr("--rdzv_endpoint")));
  EXPECT_THAT(nodes, Not(HasSubstr("--max_restarts N")));
  EXPECT_EQ(launch_help({}, "train.py"), launch_help());
}

TEST(Flags, HelpOfTorchrunIsFreeOfOthersPlatforms) {
  const std::string help = launch_help({}, "", true);

  EXPECT_THAT(help, HasSubstr("--nproc_per_node"));
  for (const char* other :
       {"--aws_access_key_id", "--tpu_name", "--zero_stage", "--num_machines N"})
    EXPECT_THAT(help, Not(HasSubstr(other)));
  EXPECT_THAT(launch_help({}, "deepspeed", true), HasSubstr("--zero_stage"));
}

TEST(Flags, EveryFlagHasAHelpTextAndAUniqueName) {
  std::vector<std::string> names;
  for (const FlagSpec& flag : flag_table()) {
    EXPECT_FALSE(flag.help.empty()) << flag.name;
    EXPECT_EQ(flag.kind == FlagKind::kSwitch, flag.value_name.empty()) << flag.name;
    names.emplace_back(flag.name);
  }
  std::sort(names.begin(), names.end());
  EXPECT_EQ(std::adjacent_find(names.begin(), names.end()), names.end());
}

TEST(Suggest, FindsSlipsAndLeavesOtherWordsAlone) {
  const std::vector<std::string> words = {"num_processes", "mixed_precision", "main_process_port"};

  EXPECT_EQ(nearest("num_porcesses", words), "num_processes");
  EXPECT_EQ(nearest("Mixed_Precison", words), "mixed_precision");
  EXPECT_EQ(nearest("learning_rate", words), std::nullopt);
  EXPECT_EQ(nearest("", words), std::nullopt);
}

}  // namespace
}  // namespace accel::launcher::flags_test
