// What help, man pages and completions are made of.

#include "launcher/flags/command_description.h"

#include <cstdlib>
#include <fstream>
#include <iterator>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "launcher/agent_commands/agent_commands.h"
#include "launcher/commands/completion/completed_command.h"
#include "launcher/commands/local_commands.h"
#include "launcher/commands/manual.h"

namespace accel::launcher::command_description_test {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

std::string file_of_the_source(const std::string& name) {
  const char* const folder = std::getenv("ACCEL_SOURCE_DIR");
  std::ifstream file(std::string(folder != nullptr ? folder : ".") + "/" + name);
  return {std::istreambuf_iterator<char>(file), {}};
}

const LocalCommand& config() {
  return *find_local_command("config");
}

TEST(CommandDescription, EveryCommandIsDescribed) {
  for (const LocalCommand& command : local_commands()) {
    const auto descriptions = describe(command);
    ASSERT_FALSE(descriptions.empty());
    EXPECT_EQ(descriptions.front().name, command.name) << "it parses its arguments first";
    for (const CommandDescription& description : descriptions) {
      EXPECT_FALSE(description.summary.empty()) << description.name;
      for (const CommandOption& option : description.options) {
        EXPECT_FALSE(option.help.empty()) << description.name << " " << option.name;
        if (option.is_flag()) {
          EXPECT_EQ(option.name.find('-', 2), std::string::npos)
              << option.name << ": help shows the form with underscores alone";
        }
      }
    }
  }
}

TEST(CommandDescription, SubcommandsHaveTheirOwn) {
  const auto descriptions = describe(config());

  ASSERT_EQ(descriptions.size(), 3U);
  EXPECT_EQ(descriptions[1].name, "config default");
  const CommandOption& last = descriptions[1].options.back();
  EXPECT_EQ(last.name, "--mixed_precision");
  EXPECT_EQ(last.value, "PRECISION");
  EXPECT_THAT(last.choices, ElementsAre("no", "fp16", "bf16"));
}

TEST(CommandDescription, HelpShowsWhatMustBeGiven) {
  const CommandDescription command = {
      "show",
      "Shows a file.",
      {{"--file", "FILE", "the file\nto show", {}, true}, {"PLACE", "", "where", {}, false}}};

  EXPECT_EQ(
      help_text(command),
      "Usage: accel show [flags] --file FILE [PLACE]\n\nShows a file.\n\n  --file FILE\n      "
      "the file to show\n  PLACE\n      where\n");
}

TEST(CommandDescription, ValuesAreNamedAfterTheFlag) {
  EXPECT_EQ(value_name("--config_file"), "FILE");
  EXPECT_EQ(value_name("--stop-grace"), "GRACE");
  EXPECT_EQ(value_name("model_name"), "MODEL_NAME");
}

TEST(Manual, HasASectionForEachSubcommand) {
  EXPECT_THAT(command_manual(config()),
              AllOf(HasSubstr(".TH ACCEL\\-CONFIG 1 "),
                    HasSubstr("accel\\-config \\- "),
                    HasSubstr(".SH accel config default\n"),
                    HasSubstr("\\fB\\-\\-config_file\\fR \\fIFILE\\fR\n"),
                    Not(HasSubstr("\n."
                                  "\n"))));
}

TEST(Manual, ThePageOfAccelNamesEveryCommand) {
  const std::string page = file_of_the_source("docs/man/accel.1");
  const auto expect_named = [&page](std::string_view name) {
    std::string escaped;
    for (const char c : name) escaped += c == '-' ? "\\-" : std::string(1, c);
    EXPECT_THAT(page, HasSubstr("accel " + escaped));
  };
  for (const LocalCommand& command : local_commands()) expect_named(command.name);
  for (const AgentCommand& command : agent_commands()) expect_named(command.name);
}

TEST(CompletedCommands, AreThoseOfLaunchOfFilesAndOfAgents) {
  const auto commands = completed_commands();

  EXPECT_EQ(commands.front().name, "launch");
  EXPECT_EQ(commands.size(), 1 + local_commands().size() + agent_commands().size());
  const CompletedFlag& last = commands.back().flags.back();
  EXPECT_EQ(last.name, "--wait");
  EXPECT_EQ(last.value, "WAIT");
}

TEST(Completions, QuoteWhatTheShellsWouldRead) {
  EXPECT_THAT(zsh_completion(),
              AllOf(StartsWith("#compdef accel accel-launch"),
                    HasSubstr("Default\\: no.]:MODE:(no fp16 bf16 fp8)'")));
  EXPECT_THAT(fish_completion(), HasSubstr("Accepted for torchrun\\'s sake"));
}

}  // namespace
}  // namespace accel::launcher::command_description_test
