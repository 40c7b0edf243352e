// No variable that the launcher can set is passed over in silence by a program of libaccel.

#include "runtime/unserved_variables.h"

#include <set>
#include <string>
#include <string_view>

#include <fnmatch.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <accel/env_contract.h>

#include "launcher/flags/flag_table.h"
#include "launcher/flags/strategies/option.h"
#include "launcher/text/choice_list.h"
#include "runtime/trimmed.h"
#include "tests/support/launch_plan_fixture.h"

namespace accel::launcher::unserved_variables_test {
namespace {

bool matches(std::string_view pattern, const std::string& variable) {
  return ::fnmatch(std::string(trimmed(pattern, " ")).c_str(), variable.c_str(), 0) == 0;
}

// "accelerate" alone reads it, after docs/reference/env_contract.md, or nobody.
bool concerns_accelerate_alone(const std::string& variable) {
  for (const EnvVariable& row : env_variables()) {
    for (const std::string_view name : split_choices(row.name)) {
      if (matches(name, variable)) return row.read_by == "accelerate";
    }
  }
  return true;
}

bool is_refused_or_said(const std::string& variable) {
  for (const UnservedVariable& row : unserved_variables()) {
    if (matches(row.name, variable)) return true;
  }
  return false;
}

class LauncherVariables : public test::LaunchPlanFixture {
 protected:
  // Those of the tables, and of launches that set the rest.
  std::set<std::string> all() {
    std::set<std::string> names;
    for (const Strategy* strategy : strategies()) {
      if (!strategy->variable.empty()) names.emplace(strategy->variable);
      for (const Option& option : strategy->options) {
        if (!option.variable.empty()) names.emplace(option.variable);
      }
    }
    const Words launches[] = {
        {"--num_processes", "2", "--cpu", "--debug", "--enable_cpu_affinity"},
        {"--dynamo_backend", "inductor", "--mixed_precision", "bf16"},
        {"--mixed_precision", "fp8", "--fp8_backend", "ao"},
        {"--use_deepspeed", "--zero_stage", "3", "--num_processes", "2"},
    };
    for (const Words& launch : launches) {
      for (const auto& [name, value] : plan(launch).spec.env) {
        if (!host_.environment.contains(name)) names.insert(name);
      }
    }
    return names;
  }
};

TEST_F(LauncherVariables, AreReadRefusedOrSaidByLibaccel) {
  const std::set<std::string> names = all();
  EXPECT_GT(names.size(), 90U);
  for (const std::string& name : names)
    EXPECT_TRUE(!concerns_accelerate_alone(name) || is_refused_or_said(name)) << name;
}

TEST_F(LauncherVariables, OfAPlainLaunchAreNeitherRefusedNorSaid) {
  for (const Words& words : {Words{"--num_processes", "2", "--cpu"},
                             Words{"--use_fsdp", "--num_processes", "2"},
                             Words{"--use_deepspeed", "--zero_stage", "3", "--num_processes", "2"},
                             Words{"--use_fsdp",
                                   "--fsdp_version",
                                   "2",
                                   "--use_parallelism_config",
                                   "--parallelism_config_dp_shard_size",
                                   "2",
                                   "--num_processes",
                                   "2"}}) {
    const EnvMap variables = plan(words).spec.env;
    const auto lookup = [&](std::string_view name) -> std::optional<std::string> {
      const auto found = variables.find(std::string(name));
      if (found == variables.end()) return std::nullopt;
      return found->second;
    };
    EXPECT_THAT(check_unserved_variables(lookup), ::testing::IsEmpty());
  }
}

TEST_F(LauncherVariables, ThatAreRefusedOrSaidHaveTheFlagsOfTheLauncher) {
  for (const UnservedVariable& row : unserved_variables()) {
    if (row.flag.empty()) continue;
    ASSERT_TRUE(row.flag.starts_with("--")) << row.flag;
    EXPECT_NE(find_flag(row.flag.substr(2)), nullptr) << row.flag;
  }
}

}  // namespace
}  // namespace accel::launcher::unserved_variables_test
