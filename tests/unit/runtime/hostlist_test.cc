#include "runtime/hostlist.h"

#include <random>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace accel::hostlist_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

using Hosts = std::vector<std::string>;

Hosts expanded(std::string_view text) {
  auto hosts = expand_hostlist(text);
  EXPECT_TRUE(hosts) << (hosts ? "" : hosts.error().message());
  return hosts ? *hosts : Hosts{};
}

std::string fault_of(std::string_view text, std::size_t most = kMostHosts) {
  const auto hosts = expand_hostlist(text, most);
  return hosts ? "none" : hosts.error().message();
}

TEST(Hostlist, ExpandsPlainNames) {
  EXPECT_THAT(expanded(""), IsEmpty());
  EXPECT_THAT(expanded("login"), ElementsAre("login"));
  EXPECT_THAT(expanded("a,b-1,c.example.org"), ElementsAre("a", "b-1", "c.example.org"));
}

TEST(Hostlist, ExpandsRangesInTheWidthOfTheirFirstNumber) {
  EXPECT_THAT(expanded("n[8-10]"), ElementsAre("n8", "n9", "n10"));
  EXPECT_THAT(expanded("n[08-10,7]"), ElementsAre("n08", "n09", "n10", "n7"));
  EXPECT_THAT(expanded("n[099-100]x"), ElementsAre("n099x", "n100x"));
}

TEST(Hostlist, MultipliesSeveralBrackets) {
  EXPECT_THAT(expanded("a[01-02,7]-b[1-2],z"),
              ElementsAre("a01-b1", "a01-b2", "a02-b1", "a02-b2", "a7-b1", "a7-b2", "z"));
}

TEST(Hostlist, NamesTheFaultAndWhereItIs) {
  EXPECT_THAT(fault_of("n[1-"), HasSubstr("a number should be here (character 5 of 4)"));
  EXPECT_THAT(fault_of("n[1"), HasSubstr("'[' without its ']'"));
  EXPECT_THAT(fault_of("n1]"), HasSubstr("']' without its '['"));
  EXPECT_THAT(fault_of("n[5-4]"), HasSubstr("runs backwards"));
  EXPECT_THAT(fault_of("a,,b"), HasSubstr("missing before ','"));
  EXPECT_THAT(fault_of("a,"), HasSubstr("missing after the last ','"));
  EXPECT_THAT(fault_of("a b"), HasSubstr("no host name has"));
  EXPECT_THAT(fault_of("n[]"), HasSubstr("a number should be here"));
  EXPECT_THAT(fault_of("n[1-2-3]"), HasSubstr("',', '-' or ']'"));
  EXPECT_THAT(fault_of("n[1234567890123456789]"), HasSubstr("more than 18 digits"));
  EXPECT_THAT(fault_of(std::string(256, 'a')), HasSubstr("more than 255 characters"));
}

TEST(Hostlist, RefusesMoreHostsThanAllowedBeforeMakingThem) {
  EXPECT_THAT(fault_of("n[1-999999999999999999]"), HasSubstr("more than 1048576 hosts"));
  EXPECT_THAT(fault_of("n[1-100][1-100][1-100][1-100]"), HasSubstr("more than 1048576 hosts"));
  EXPECT_THAT(fault_of("n[1-3]", 2), HasSubstr("more than 2 hosts"));
  EXPECT_THAT(fault_of("n[1-2],m", 2), HasSubstr("more than 2 hosts"));
}

TEST(Hostlist, CompressesNeighbours) {
  const auto compressed = [](const Hosts& hosts) { return compress_hostlist(hosts); };
  EXPECT_EQ(compressed({}), "");
  EXPECT_EQ(compressed({"login"}), "login");
  EXPECT_EQ(compressed({"n1"}), "n1");
  EXPECT_EQ(compressed({"n1", "n2", "n3", "n7"}), "n[1-3,7]");
  EXPECT_EQ(compressed({"n08", "n09", "n10"}), "n[08-10]");
  EXPECT_EQ(compressed({"n9", "n10", "n011"}), "n[9-10,011]");
  EXPECT_EQ(compressed({"gpu1.x", "gpu2.x", "gpu3.y"}), "gpu[1-2].x,gpu3.y");
  EXPECT_EQ(compressed({"n2", "n1", "n1"}), "n[2,1,1]");
}

TEST(Hostlist, TenThousandNodesInOrderAreAFewBytes) {
  Hosts hosts;
  for (int i = 0; i < 10'000; ++i)
    hosts.push_back("gpu-" + std::to_string(10'000 + i) + ".cluster");

  const std::string text = compress_hostlist(hosts);

  EXPECT_EQ(text, "gpu-[10000-19999].cluster");
  EXPECT_EQ(expanded(text), hosts);
}

TEST(Hostlist, ExpandingWhatWasCompressedGivesTheSameNames) {
  std::mt19937 random(7);
  const auto below = [&](unsigned n) { return random() % n; };
  for (int round = 0; round < 2'000; ++round) {
    Hosts hosts;
    const unsigned count = 1 + below(12);
    for (unsigned i = 0; i < count; ++i) {
      std::string name = below(2) ? "a" : "b-";
      if (below(8)) name += std::string(below(3), '0') + std::to_string(below(14));
      if (below(3) == 0) name += below(2) ? ".c" : "x";
      if (below(3) == 0) name += std::to_string(below(200));
      hosts.push_back(name);
    }

    const std::string text = compress_hostlist(hosts);

    ASSERT_EQ(expanded(text), hosts) << text;
  }
}

TEST(Hostlist, NumbersOfAnyLengthSurvive) {
  const Hosts hosts{"n" + std::string(40, '9'), "n" + std::string(40, '0') + "1", "n1"};

  EXPECT_EQ(expanded(compress_hostlist(hosts)), hosts);
}

}  // namespace
}  // namespace accel::hostlist_test
