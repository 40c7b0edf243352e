// --strict_compat: what workers see is what the peers' launchers would give them. The values are compared with the peers
// themselves by tests/peer/launch_environment.py; here stand the cases that a machine cannot play: other numbers of
// cores, ranks of MPI, what is inherited.

#include "launcher/workers/compat_environment.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/launch_plan_fixture.h"

namespace accel::launcher::compat_environment_test {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::Key;
using ::testing::Not;
using ::testing::Pair;

class CompatEnvironmentTest : public test::LaunchPlanFixture {
 protected:
  CompatEnvironmentTest() {
    host_.num_machine_cores = [this] { return num_cores_; };
  }

  // What the first worker of this line sees.
  EnvMap seen(Words words) {
    words.emplace_back("--strict_compat");
    words.push_back(script_);
    const LaunchPlan result = or_throw(resolve_launch(words, host_));
    EnvMap env = result.spec.env;
    for (const auto& [name, value] : result.spec.workers.front().env) env[name] = value;
    return env;
  }
  std::string threads(const Words& words) {
    const EnvMap env = seen(words);
    const auto found = env.find("OMP_NUM_THREADS");
    return found == env.end() ? "none" : found->second;
  }

  int num_cores_ = 24;
};

TEST_F(CompatEnvironmentTest, TheCoresOfTheWholeMachineAreDividedOnTheCpuOnly) {
  machine_ = "package:1 [numa] core:8 pu:1";  // what is granted, which does not count

  EXPECT_EQ(threads({"--cpu", "--num_processes", "1"}), "24");
  EXPECT_EQ(threads({"--cpu", "--num_processes", "5"}), "4");
  EXPECT_EQ(threads({"--num_processes", "1"}), "1");
  EXPECT_EQ(threads({"--cpu", "--num_processes", "1", "--num_cpu_threads_per_process", "3"}), "3");
  num_cores_ = 1;
  EXPECT_EQ(threads({"--cpu", "--num_processes", "2"}), "1");
}

TEST_F(CompatEnvironmentTest, RanksThatMpiHasOnThisMachineAreTheDivisor) {
  host_.environment["OMPI_COMM_WORLD_LOCAL_SIZE"] = "6";
  EXPECT_EQ(threads({"--cpu", "--num_processes", "1"}), "4");

  host_.environment["MPI_LOCALNRANKS"] = "2";  // asked before
  EXPECT_EQ(threads({"--cpu", "--num_processes", "1"}), "12");
}

TEST_F(CompatEnvironmentTest, WhatIsInheritedHoldsUnlessItIsZeroOnTheCpu) {
  host_.environment["OMP_NUM_THREADS"] = "7";
  EXPECT_EQ(threads({"--cpu", "--num_processes", "2"}), "7");

  host_.environment["OMP_NUM_THREADS"] = "0";
  EXPECT_EQ(threads({"--cpu", "--num_processes", "2"}), "12");
  EXPECT_EQ(threads({"--num_processes", "2"}), "0");
}

TEST_F(CompatEnvironmentTest, DeepSpeedAndTorchrunGiveOneThreadToSeveralWorkersAndNoneToOne) {
  num_gpus_ = 2;
  EXPECT_EQ(threads({"--use_deepspeed", "--num_processes", "2"}), "1");
  EXPECT_EQ(threads({"--use_deepspeed", "--num_processes", "1"}), "none");

  host_.is_torchrun = true;
  EXPECT_EQ(threads({"--nproc_per_node", "2"}), "1");
  EXPECT_EQ(threads({"--nproc_per_node", "1"}), "none");
}

TEST_F(CompatEnvironmentTest, IntelsVariablesAreForTheCpuAndReplaceWhatIsInherited) {
  host_.environment["KMP_BLOCKTIME"] = "200";

  EXPECT_THAT(seen({"--cpu", "--num_processes", "2"}),
              AllOf(Contains(Pair("KMP_AFFINITY", "granularity=fine,compact,1,0")),
                    Contains(Pair("KMP_BLOCKTIME", "1"))));
  EXPECT_THAT(seen({"--num_processes", "1"}),
              AllOf(Not(Contains(Key("KMP_AFFINITY"))), Contains(Pair("KMP_BLOCKTIME", "200"))));
}

TEST_F(CompatEnvironmentTest, NothingElseIsAdded) {
  const EnvMap env = seen({"--cpu", "--num_processes", "1"});

  for (const char* name : {"MKL_NUM_THREADS",
                           "OPENBLAS_NUM_THREADS",
                           "NUMEXPR_NUM_THREADS",
                           "PYTHONUNBUFFERED",
                           "TORCHELASTIC_SIGNALS_TO_HANDLE"}) {
    EXPECT_THAT(env, Not(Contains(Key(name))));
  }
}

TEST_F(CompatEnvironmentTest, SignalsAreToldToWorkersWithRanks) {
  EXPECT_THAT(seen({"--cpu", "--num_processes", "2"}),
              Contains(Pair("TORCHELASTIC_SIGNALS_TO_HANDLE", "SIGTERM,SIGINT,SIGHUP,SIGQUIT")));
  EXPECT_THAT(seen({"--cpu", "--num_processes", "2", "--signals_to_handle", "SIGTERM"}),
              Contains(Pair("TORCHELASTIC_SIGNALS_TO_HANDLE", "SIGTERM")));
}

TEST_F(CompatEnvironmentTest, TheDoubleDashAfterTheScriptIsHandedOn) {
  const auto result = resolve_launch({"--cpu", "--strict_compat", program_, "--", "x"}, host_);

  ASSERT_TRUE(result) << result.error().render();
  EXPECT_THAT(result->spec.workers.front().argv, ElementsAre(program_, "--", "x"));
}

}  // namespace
}  // namespace accel::launcher::compat_environment_test
