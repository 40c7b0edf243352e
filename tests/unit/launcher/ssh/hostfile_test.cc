#include "launcher/start/ssh/hostfile.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace accel::launcher::hostfile_test {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

using Hosts = std::vector<HostSlots>;

const Hosts kTwo = {{"w-1", {0, 1, 2, 3}}, {"w-2", {0, 1, 2, 3}}};

TEST(Hostfile, ReadsHostsAndSlotsInTheirOrder) {
  const Hosts hosts =
      or_throw(parse_hostfile("# a comment\n\n  w-2 slots=2\r\nw-1\tslots=1 # x", "H"));

  EXPECT_THAT(hosts, ElementsAre(HostSlots{"w-2", {0, 1}}, HostSlots{"w-1", {0}}));
}

TEST(Hostfile, ABadLineIsNamedWithItsNumber) {
  for (const char* line : {"w-2",
                           "w-2 slots=",
                           "w-2 slots=x",
                           "w-2 slots=0",
                           "w-2 slots=-1",
                           "w-2 slots=99999",
                           "-oProxyCommand=x slots=1",
                           "w-2 gpus=2"}) {
    const auto hosts = parse_hostfile("w-1 slots=1\n" + std::string(line) + "\n", "H");

    ASSERT_FALSE(hosts) << line;
    EXPECT_EQ(hosts.error().code(), ErrorCode::kConfigSyntax);
    EXPECT_THAT(hosts.error().message(), AllOf(HasSubstr("H:2: "), HasSubstr(line)));
    EXPECT_THAT(hosts.error().remedy(), HasSubstr("slots=N"));
  }
}

TEST(Hostfile, AHostThatIsThereTwiceAndAFileWithoutOneAreRefused) {
  EXPECT_THAT(parse_hostfile("a slots=1\nb slots=1\na slots=2\n", "H").error().message(),
              HasSubstr("H:3: Hostfile contains multiple entries for a"));
  EXPECT_THAT(parse_hostfile("# nobody\n", "H").error().message(), HasSubstr("empty"));
}

// As DeepSpeed: hosts, or slots of them, in the order of the file.
TEST(HostFilter, TakesOrLeavesOutHostsAndSlots) {
  const auto taken = [](std::string_view in, std::string_view out) {
    return or_throw(filter_hosts(kTwo, in, out));
  };

  EXPECT_EQ(taken("", ""), kTwo);
  EXPECT_THAT(taken("w-2", ""), ElementsAre(kTwo[1]));
  EXPECT_THAT(taken("w-2@w-1:3,0", ""), ElementsAre(HostSlots{"w-1", {0, 3}}, kTwo[1]));
  EXPECT_THAT(taken("w-1:1@w-1:2,1", ""), ElementsAre(HostSlots{"w-1", {1, 2}}));
  EXPECT_THAT(taken("", "w-1"), ElementsAre(kTwo[1]));
  EXPECT_THAT(taken("", "w-2:0,1"), ElementsAre(kTwo[0], HostSlots{"w-2", {2, 3}}));
  EXPECT_THAT(taken("", "w-2:0,1,2,3"), ElementsAre(kTwo[0]));
}

TEST(HostFilter, RefusesWhatTheFileDoesNotHave) {
  const auto message = [](std::string_view in, std::string_view out) {
    const auto taken = filter_hosts(kTwo, in, out);
    if (taken) throw std::logic_error("it was taken");
    EXPECT_EQ(taken.error().code(), ErrorCode::kInvalidArgument);
    EXPECT_FALSE(taken.error().remedy().empty());
    return taken.error().message();
  };

  EXPECT_THAT(message("w-3", ""), AllOf(HasSubstr("'w-3' not found"), HasSubstr("did you mean")));
  EXPECT_THAT(message("", "w-1:4"), HasSubstr("No slot '4' specified on host 'w-1'"));
  EXPECT_THAT(message("w-1:", ""), HasSubstr("No slot ''"));
  EXPECT_THAT(message("w-1:0x", ""), HasSubstr("No slot '0x'"));
  EXPECT_THAT(message("w-1@", ""), HasSubstr("not found"));
  EXPECT_THAT(message("w-1", "w-2"), HasSubstr("exclude each other"));
  EXPECT_THAT(message("", "w-1@w-2"), HasSubstr("leaves no host"));
}

}  // namespace
}  // namespace accel::launcher::hostfile_test
