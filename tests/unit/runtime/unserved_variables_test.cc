#include "runtime/unserved_variables.h"

#include <map>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace accel::unserved_variables_test {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

EnvLookup env(std::map<std::string, std::string> variables) {
  return [variables = std::move(variables)](std::string_view name) -> std::optional<std::string> {
    const auto found = variables.find(std::string(name));
    if (found == variables.end()) return std::nullopt;
    return found->second;
  };
}

Error refusal(const std::map<std::string, std::string>& variables) {
  try {
    std::ignore = check_unserved_variables(env(variables));
  } catch (const Error& error) {
    return error;
  }
  ADD_FAILURE() << "nothing was thrown";
  return Error(ErrorCode::kInternal, "");
}

TEST(UnservedVariables, AreNotMissedInAnEmptyEnvironment) {
  EXPECT_THAT(check_unserved_variables(env({})), IsEmpty());
}

TEST(UnservedVariables, AskForNothingWithTheValuesOfAPlainLaunch) {
  EXPECT_THAT(check_unserved_variables(env({{"ACCELERATE_DYNAMO_BACKEND", "NO"},
                                            {"ACCELERATE_DYNAMO_MODE", "default"},
                                            {"ACCELERATE_USE_MEGATRON_LM", "false"},
                                            {"PARALLELISM_CONFIG_TP_SIZE", "1"},
                                            {"PARALLELISM_CONFIG_CP_SIZE", "1"},
                                            {"PARALLELISM_CONFIG_SP_SIZE", "1"},
                                            {"ACCELERATE_DEEPSPEED_ZERO3_INIT", ""}})),
              IsEmpty());
}

TEST(UnservedVariables, ThatWouldChangeTheTrainingAreRefusedByVariableFlagAndKey) {
  const Error error = refusal({{"ACCELERATE_USE_MEGATRON_LM", "true"}});

  EXPECT_EQ(error.code(), ErrorCode::kUnsupported);
  EXPECT_THAT(error.message(),
              AllOf(HasSubstr("ACCELERATE_USE_MEGATRON_LM is 'true'"),
                    HasSubstr("--use_megatron_lm"),
                    HasSubstr("megatron_lm_config")));
  EXPECT_THAT(error.remedy(), HasSubstr("leave it out"));
}

TEST(UnservedVariables, OfLayersAndSequencesAreRefusedAboveOne) {
  for (const char* axis : {"TP", "CP", "SP"}) {
    const std::string name = std::string("PARALLELISM_CONFIG_") + axis + "_SIZE";
    EXPECT_THAT(refusal({{name, "2"}}).message(), HasSubstr(name + " is '2'"));
  }
}

TEST(UnservedVariables, ThatChangeSpeedAloneAreSaid) {
  EXPECT_THAT(check_unserved_variables(env({{"ACCELERATE_DYNAMO_BACKEND", "INDUCTOR"}})),
              ElementsAre(AllOf(HasSubstr("ACCELERATE_DYNAMO_BACKEND is 'INDUCTOR'"),
                                HasSubstr("--dynamo_backend"),
                                HasSubstr("has no effect"))));
}

TEST(UnservedVariables, OfDeepSpeedCountWithDeepSpeedAlone) {
  const std::map<std::string, std::string> asked = {{"ACCELERATE_DEEPSPEED_ZERO3_INIT", "true"}};
  EXPECT_THAT(check_unserved_variables(env(asked)), IsEmpty());

  auto with_deepspeed = asked;
  with_deepspeed["ACCELERATE_USE_DEEPSPEED"] = "true";
  EXPECT_THAT(check_unserved_variables(env(with_deepspeed)),
              ElementsAre(HasSubstr("--zero3_init_flag")));
}

// A dependent row is silent for a reason: what it counts with is a row that speaks, or a variable that libaccel reads.
TEST(UnservedVariables, ThatAreSilentCountWithOneThatIsNot) {
  for (const UnservedVariable& row : unserved_variables()) {
    if (row.treatment != Unserved::kDependent) {
      EXPECT_FALSE(row.reason.empty()) << row.name;
      EXPECT_FALSE(row.flag.empty() && row.key.empty()) << row.name;
      EXPECT_EQ(row.remedy.empty(), row.treatment == Unserved::kSaid) << row.name;
      continue;
    }
    bool speaks = false;
    for (const UnservedVariable& head : unserved_variables())
      speaks |= head.name == row.counts_with && head.treatment != Unserved::kDependent;
    for (const EnvVariable& known : env_variables()) {
      speaks |=
          known.name == row.counts_with && known.read_by.find("libaccel") != std::string_view::npos;
    }
    EXPECT_TRUE(speaks) << row.name;
  }
}

}  // namespace
}  // namespace accel::unserved_variables_test
