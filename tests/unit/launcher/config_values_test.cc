// Values of configuration files that have the right type and still make no sense: what is said of them,
// and that a flag which is given takes their place.

#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/launch_plan_fixture.h"

namespace accel::launcher::config_values_test {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Pair;

struct WrongCount {
  const char* name;
  const char* line;      // of the file
  const char* expected;  // part of the message
};

constexpr WrongCount kWrong[] = {
    {"Processes", "num_processes: -3", "num_processes is -3, expected a whole number from 1"},
    {"NoProcess", "num_processes: 0", "num_processes is 0, expected a whole number from 1"},
    {"Machines", "num_machines: -2", "num_machines is -2, expected a whole number from 1"},
    {"NoMachine", "num_machines: 0", "num_machines is 0, expected a whole number from 1"},
    {"Rank", "machine_rank: -1", "machine_rank is -1, expected a whole number from 0"},
    {"Port",
     "main_process_port: 70000",
     "main_process_port is 70000, expected a whole number from 0 to 65535"},
};

class WrongCountTest : public test::LaunchPlanFixture,
                       public ::testing::WithParamInterface<WrongCount> {};

TEST_P(WrongCountTest, NamesFileKeyValueAndWhatIsExpected) {
  const std::string line = GetParam().line;
  const std::string processes = line.starts_with("num_processes") ? "" : "num_processes: 2\n";

  const Error error =
      refused(file("distributed_type: MULTI_CPU\nuse_cpu: true\n" + processes + line + "\n"));

  EXPECT_EQ(error.code(), ErrorCode::kConfigInvalidValue);
  EXPECT_THAT(error.message(), AllOf(HasSubstr("config.yaml: "), HasSubstr(GetParam().expected)));
  EXPECT_THAT(error.remedy(), HasSubstr("config.yaml"));
}

INSTANTIATE_TEST_SUITE_P(Values,
                         WrongCountTest,
                         ::testing::ValuesIn(kWrong),
                         [](const auto& param_info) { return std::string(param_info.param.name); });

using ConfigValuesTest = test::LaunchPlanFixture;

TEST_F(ConfigValuesTest, AGivenFlagTakesThePlaceOfAWrongCount) {
  const Words words = file("distributed_type: MULTI_CPU\nuse_cpu: true\nnum_processes: -3\n");

  const LaunchPlan result = plan({"--num_processes", "2", words[0], words[1]});

  EXPECT_EQ(result.spec.workers.size(), 2U);
}

TEST_F(ConfigValuesTest, TheFileOfTheQuestionnaireIsReadWithoutAWord) {
  // As `accel config` writes fp8, whose keys the peer's own launch does not know.
  const LaunchPlan result = plan(file(
      "distributed_type: 'NO'\nuse_cpu: true\nmixed_precision: fp8\nfp8_config:\n  backend: TE\n"
      "  amax_history_len: 7\n  amax_compute_algo: max\n  override_linear_precision:\n    - false\n"
      "    - true\n    - false\n"));

  EXPECT_THAT(result.notices, IsEmpty());
  EXPECT_THAT(result.spec.env,
              AllOf(Contains(Pair("ACCELERATE_FP8_AMAX_HISTORY_LEN", "7")),
                    Contains(Pair("ACCELERATE_FP8_OVERRIDE_DGRAD", "True")),
                    Contains(Pair("ACCELERATE_FP8_OVERRIDE_WGRAD", "False"))));
}

}  // namespace
}  // namespace accel::launcher::config_values_test
