// Warnings about a configuration file: what they say, and what --strict makes of them.

#include "launcher/documents/file_notice.h"

#include <map>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "launcher/config/config_file.h"
#include "tests/support/launch_plan_fixture.h"

namespace accel::launcher::file_notice_test {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::Pair;
using ::testing::UnorderedElementsAre;

TEST(FileNotice, EachSaysWhatToChange) {
  const std::string text =
      "distributed_type: FSDP\ndebug: true\nipex_config: {}\nfsdp_config:\n  shards: 2\n"
      "  fsdp_backward_prefetch_policy: NO_PREFETCH\ndebug: false\n";
  const auto file = or_throw(parse_config_file(text, ConfigFormat::kYaml, "c.yaml"));

  std::map<std::string, std::string> remedies;
  for (const FileNotice& notice : file.notices) remedies[notice.what] = notice.remedy;
  EXPECT_THAT(
      remedies,
      UnorderedElementsAre(
          Pair("c.yaml: debug is given on line 2 and again on line 7", "remove line 2 of c.yaml"),
          Pair("c.yaml:3: ipex_config has no effect",
               "remove line 3 of c.yaml (IPEX is part of PyTorch now)"),
          Pair("c.yaml:5: fsdp_config has no key shards", "remove line 5 of c.yaml"),
          Pair("c.yaml:6: fsdp_config.backward_prefetch_policy is an older name",
               "call it fsdp_backward_prefetch on line 6 of c.yaml")));
}

class StrictTest : public test::LaunchPlanFixture {};

TEST_F(StrictTest, WhatIsAWarningAboutTheFileIsAnError) {
  Words words = file("distributed_type: 'NO'\ndebug: true\nipex_config: {}\ndebug: false\n");
  EXPECT_THAT(plan(words).notices, Contains(HasSubstr("the last one holds")));

  words.insert(words.begin(), "--strict");
  const Error error = refused(words);

  EXPECT_EQ(error.code(), ErrorCode::kConfigInvalidValue);
  EXPECT_THAT(error.render(),
              AllOf(HasSubstr("ipex_config has no effect"),
                    HasSubstr("debug is given on line 2 and again on line 4"),
                    HasSubstr("leave --strict out")));
  EXPECT_THAT(error.render(), Not(HasSubstr("the last one holds")));
}

TEST_F(StrictTest, AFileWithoutAWarningIsTaken) {
  Words words = file("distributed_type: 'NO'\nnum_processes: 1\n");
  words.emplace_back("--strict");

  EXPECT_EQ(plan(words).spec.workers.size(), 1u);
}

}  // namespace
}  // namespace accel::launcher::file_notice_test
