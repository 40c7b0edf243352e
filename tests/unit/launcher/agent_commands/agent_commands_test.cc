#include "launcher/agent_commands/agent_commands.h"

#include <string>
#include <vector>

#include <CLI/CLI.hpp>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace accel::launcher::agent_commands_test {
namespace {

using ::testing::IsSupersetOf;

std::vector<std::string> flags_of(const AgentCommand& command) {
  std::vector<std::string> names;
  for (const CommandOption& option : describe(command).options)
    if (option.is_flag()) names.push_back(option.name);
  return names;
}

TEST(AgentCommands, AllSayWhichAgentIsMeant) {
  for (const AgentCommand& command : agent_commands())
    EXPECT_THAT(flags_of(command),
                IsSupersetOf({"--agent", "--tls-dir", "--insecure", "--json", "--wait"}))
        << command.name;
}

TEST(AgentCommands, AreParsedIntoTheirFlags) {
  CLI::App app;
  AgentFlags flags;
  add_agent_commands(app, flags);
  app.parse("run --nnodes 2:4 --nproc_per_node 8 --stop-grace 2.5 --detach -- train --lr 1");
  EXPECT_EQ(flags.run.nodes, "2:4");
  EXPECT_EQ(flags.run.nproc_per_node, 8U);
  EXPECT_EQ(flags.run.stop_grace, 2.5);
  EXPECT_TRUE(flags.detach);
  EXPECT_EQ(flags.run.command, (std::vector<std::string>{"train", "--lr", "1"}));
}

TEST(AgentCommands, RefuseAGraceBesideAKill) {
  CLI::App app;
  AgentFlags flags;
  add_agent_commands(app, flags);
  EXPECT_THROW(app.parse("stop --kill --grace 3 job"), CLI::ExcludesError);
}

TEST(SecondsOfAFlag, AreANumberOfAtMostADay) {
  for (const char* good : {"0", "0.5", "86400"}) EXPECT_EQ(objection_to_seconds(good, 0), "");
  for (const char* wrong : {"nan", "-nan", "inf", "1e300", "-1", "86401", "", "3 apples"})
    EXPECT_NE(objection_to_seconds(wrong, 0), "") << wrong;
  EXPECT_EQ(objection_to_seconds("nan", 0.001),
            "'nan' is not a number of seconds from 0.001 to 86400 (a day)");
  EXPECT_NE(objection_to_seconds("0", 0.001), "");
}

}  // namespace
}  // namespace accel::launcher::agent_commands_test
