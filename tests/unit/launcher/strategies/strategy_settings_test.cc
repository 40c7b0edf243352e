// Megatron-LM, parallelism configurations and fp8; flags of other versions. Values against the peer's:
// tests/peer/launch_options.py.

#include <string>
#include <string_view>

#include <fnmatch.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <accel/env_contract.h>

#include "launcher/flags/flag_table.h"
#include "launcher/flags/retired_flags.h"
#include "launcher/flags/strategies/option.h"
#include "launcher/text/choice_list.h"
#include "runtime/trimmed.h"
#include "tests/support/launch_plan_fixture.h"

namespace accel::launcher::strategy_settings_test {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::Key;
using ::testing::Not;
using ::testing::Pair;

class StrategyTest : public test::LaunchPlanFixture {
 protected:
  static Words with(Words words, const Words& more) {
    words.insert(words.end(), more.begin(), more.end());
    return words;
  }
};

TEST_F(StrategyTest, FalseIsNotTrueForMegatron) {
  const LaunchPlan result = plan({"--use_megatron_lm",
                                  "--num_processes",
                                  "1",
                                  "--megatron_lm_no_load_optim",
                                  "false",
                                  "--megatron_lm_no_save_optim",
                                  "true"});

  EXPECT_THAT(result.spec.env,
              AllOf(Contains(Pair("ACCELERATE_USE_MEGATRON_LM", "true")),
                    Contains(Pair("MEGATRON_LM_NO_LOAD_OPTIM", "False")),
                    Contains(Pair("MEGATRON_LM_NO_SAVE_OPTIM", "True")),
                    Contains(Pair("MEGATRON_LM_GRADIENT_CLIPPING", "1.0"))));
}

TEST_F(StrategyTest, AModelOfMegatronMustDivideTheProcesses) {
  const Words words = {"--use_megatron_lm",
                       "--megatron_lm_tp_degree",
                       "2",
                       "--megatron_lm_pp_degree",
                       "2",
                       "--num_processes"};

  EXPECT_EQ(plan(with(words, {"8"})).spec.workers.size(), 8u);
  const Error error = refused(with(words, {"6"}));
  EXPECT_THAT(error.message(), HasSubstr("takes 4 processes (tp_degree 2 x pp_degree 2"));
  EXPECT_THAT(error.remedy(), HasSubstr("a multiple of 4"));
}

class ParallelismTest : public StrategyTest {
 protected:
  const Words chooser_ = {"--use_fsdp", "--fsdp_version", "2", "--use_parallelism_config"};
};

TEST_F(ParallelismTest, AxesMustHoldAllProcesses) {
  const Words axes = with(
      chooser_, {"--parallelism_config_dp_shard_size", "2", "--parallelism_config_tp_size", "2"});

  EXPECT_THAT(plan(with(axes, {"--num_processes", "4"})).spec.env,
              AllOf(Contains(Pair("ACCELERATE_USE_PARALLELISM_CONFIG", "true")),
                    Contains(Pair("PARALLELISM_CONFIG_TP_SIZE", "2")),
                    Not(Contains(Key("PARALLELISM_CONFIG_SP_SEQ_LENGTH")))));
  const Error error = refused(with(axes, {"--num_processes", "3"}));
  EXPECT_THAT(
      error.message(),
      HasSubstr("hold 4 processes (DP_REPLICATE 1 x DP_SHARD 2 x TP 2 x CP 1 x SP 1), but 3 "
                "are started"));
}

TEST_F(ParallelismTest, SizesThatNoComputerHasDoNotOverflow) {
  Words words = with(chooser_, {"--num_processes", "2"});
  for (const char* axis : {"dp_replicate", "dp_shard", "tp", "cp"})
    words = with(words, {std::string("--parallelism_config_") + axis + "_size", "999999999999"});

  EXPECT_EQ(refused(words).code(), ErrorCode::kUsage);
}

TEST_F(ParallelismTest, NeedsVersion2OfFsdpByFlag) {
  const char* const text =
      "You cannot use `--use_parallelism_config` without `--use_fsdp` and `--fsdp_version=2`. ";

  EXPECT_THAT(refused({"--use_parallelism_config"}).message(), HasSubstr(text));
  EXPECT_THAT(refused({"--use_fsdp", "--use_parallelism_config"}).message(), HasSubstr(text));
  // Where the peer lets version 1 pass.
  EXPECT_THAT(refused({"--use_fsdp", "--fsdp_version", "1", "--use_parallelism_config"}).message(),
              HasSubstr(text));
}

TEST_F(ParallelismTest, FalseIsNotTrueForLengths) {
  const LaunchPlan result = plan(with(chooser_,
                                      {"--num_processes",
                                       "2",
                                       "--parallelism_config_sp_size",
                                       "2",
                                       "--parallelism_config_sp_seq_length_is_variable",
                                       "false"}));

  EXPECT_THAT(result.spec.env,
              AllOf(Contains(Pair("PARALLELISM_CONFIG_SP_SEQ_LENGTH_IS_VARIABLE", "False")),
                    Contains(Pair("PARALLELISM_CONFIG_SP_SEQ_LENGTH", "None"))));
}

TEST_F(ParallelismTest, SequencesAreDividedInOneWay) {
  const Error error = refused(
      with(chooser_, {"--parallelism_config_cp_size", "2", "--parallelism_config_sp_size", "2"}));

  EXPECT_THAT(error.message(), HasSubstr("are both above 1"));
}

class Fp8Test : public StrategyTest {
 protected:
  Words fp8_file(const std::string& keys) {
    return file("distributed_type: 'NO'\nuse_cpu: true\nmixed_precision: fp8\nfp8_config:\n" +
                keys);
  }
};

TEST_F(Fp8Test, BracketsAroundLinearPrecisionAreRead) {
  const LaunchPlan result =
      plan(fp8_file("  override_linear_precision: (false, true, false)\n  backend: TE\n"));

  EXPECT_THAT(result.spec.env,
              AllOf(Contains(Pair("ACCELERATE_FP8_OVERRIDE_FPROP", "False")),
                    Contains(Pair("ACCELERATE_FP8_OVERRIDE_DGRAD", "True")),
                    Contains(Pair("ACCELERATE_FP8_OVERRIDE_WGRAD", "False")),
                    Contains(Pair("ACCELERATE_FP8_BACKEND", "TE"))));
}

TEST_F(Fp8Test, KeysAsTheQuestionnaireWritesThemHold) {
  const LaunchPlan result = plan(fp8_file(
      "  amax_history_length: 16\n  amax_compute_algorithm: max\n  optimization_level: O1\n"));

  EXPECT_THAT(result.spec.env,
              AllOf(Contains(Pair("ACCELERATE_FP8_AMAX_HISTORY_LEN", "16")),
                    Contains(Pair("ACCELERATE_FP8_AMAX_COMPUTE_ALGO", "max")),
                    Contains(Pair("ACCELERATE_FP8_OPT_LEVEL", "O1"))));
  EXPECT_THAT(result.notices, Contains(HasSubstr("the key is fp8_amax_history_len")));
}

TEST_F(Fp8Test, MsAmpIsDeprecated) {
  EXPECT_THAT(plan(fp8_file("  backend: MSAMP\n")).notices,
              Contains(HasSubstr("msamp is deprecated")));
  const LaunchPlan hyphenated = plan(fp8_file("  backend: MS-AMP\n"));
  EXPECT_THAT(hyphenated.spec.env, Contains(Pair("ACCELERATE_FP8_BACKEND", "MSAMP")));
  EXPECT_THAT(hyphenated.notices, Contains(HasSubstr("msamp is deprecated")));
  EXPECT_THAT(plan(fp8_file("  backend: TE\n")).notices,
              Not(Contains(HasSubstr("msamp is deprecated"))));
}

TEST_F(Fp8Test, OptionsAreForFp8Alone) {
  EXPECT_THAT(plan({"--cpu", "--fp8_backend", "te"}).spec.env,
              Not(Contains(Key("ACCELERATE_FP8_BACKEND"))));
}

TEST_F(Fp8Test, LinearPrecisionIsThreeTruths) {
  for (const char* text : {"true", "true,false", "true,false,perhaps", "true,false,true,false"}) {
    const Error error =
        refused({"--cpu", "--mixed_precision", "fp8", "--fp8_override_linear_precision", text});
    EXPECT_THAT(error.message(), HasSubstr("expected three of true and false")) << text;
  }
}

TEST_F(StrategyTest, FlagsOfOtherVersionsAreAcceptedWithTheirReplacement) {
  const LaunchPlan result = plan({"--cpu",
                                  "--ipex",
                                  "--mpirun_ccl",
                                  "1",
                                  "--tp-size",
                                  "2",
                                  "--fsdp_backward_prefetch_policy",
                                  "BACKWARD_POST"});

  EXPECT_THAT(result.notices,
              AllOf(Contains(HasSubstr("--ipex has no effect")),
                    Contains(HasSubstr("--mpirun_ccl has no effect")),
                    Contains(HasSubstr("--parallelism_config_tp_size N"))));
  EXPECT_THAT(plan({"--use_fsdp",
                    "--num_processes",
                    "1",
                    "--fsdp_backward_prefetch_policy",
                    "BACKWARD_POST"})
                  .spec.env,
              Contains(Pair("FSDP_BACKWARD_PREFETCH", "BACKWARD_POST")));
}

TEST_F(StrategyTest, OneGpuIdIsTooFewForSeveralGpus) {
  num_gpus_ = 2;
  const Words words = with(file("distributed_type: MULTI_GPU\nnum_processes: 2\n"), {"--gpu_ids"});

  EXPECT_THAT(refused(with(words, {"0"})).message(),
              HasSubstr("Less than two GPU ids were configured and tried to run on multiple GPUs"));
  EXPECT_THAT(plan(with(words, {"0,1"})).spec.env, Contains(Pair("CUDA_VISIBLE_DEVICES", "0,1")));
}

TEST_F(StrategyTest, OneProcessIsTooFewForSeveralGpus) {
  num_gpus_ = 2;

  EXPECT_THAT(refused({"--multi_gpu", "--num_processes", "1"}).message(),
              HasSubstr("You need to use at least 2 processes to use `--multi_gpu`."));
}

TEST(RetiredFlags, AreNoFlagsAndTheirSuccessorsAre) {
  for (const RetiredFlag& flag : retired_flags()) {
    EXPECT_EQ(find_flag(flag.name), nullptr) << flag.name;
    EXPECT_FALSE(flag.advice.empty()) << flag.name;
    if (flag.successor.empty()) continue;
    EXPECT_NE(find_flag(flag.successor), nullptr) << flag.name;
  }
}

// Names of docs/reference/env_contract.md, some of them with a star.
bool is_documented(std::string_view variable) {
  for (const EnvVariable& row : env_variables()) {
    for (const std::string_view name : split_choices(row.name)) {
      const std::string pattern(trimmed(name, " "));
      if (::fnmatch(pattern.c_str(), std::string(variable).c_str(), 0) == 0) return true;
    }
  }
  return false;
}

TEST(Strategies, VariablesAreOnThePageOfTheEnvironment) {
  for (const Strategy* strategy : strategies()) {
    EXPECT_TRUE(strategy->variable.empty() || is_documented(strategy->variable));
    for (const Option& option : strategy->options)
      EXPECT_TRUE(option.variable.empty() || is_documented(option.variable)) << option.variable;
  }
}

TEST(Strategies, DefaultsFitTheirOptions) {
  for (const Strategy* strategy : strategies()) {
    for (const Option& option : strategy->options) {
      EXPECT_TRUE(option.flag.name.starts_with(strategy->prefix)) << option.flag.name;
      EXPECT_EQ(find_option(*strategy, option.flag.name), &option) << option.flag.name;
    }
  }
}

}  // namespace
}  // namespace accel::launcher::strategy_settings_test
