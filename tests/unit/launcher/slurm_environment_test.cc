#include "launcher/start/slurm/slurm_environment.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace accel::launcher::slurm_environment_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// As SLURM 22.05 sets them in the script of `sbatch -N2`.
EnvMap batch() {
  return {{"SLURM_JOB_ID", "17"},
          {"SLURM_JOB_NODELIST", "n[1-2]"},
          {"SLURM_JOB_NUM_NODES", "2"},
          {"SLURM_CLUSTER_NAME", "alps"},
          {"SLURM_PROCID", "0"},
          {"SLURM_LOCALID", "0"},
          {"SLURM_NODEID", "0"},
          {"SLURM_TASKS_PER_NODE", "1(x2)"},
          {"SLURMD_NODENAME", "n1"}};
}

// In the second task of `srun -N2 --ntasks-per-node=1` there.
EnvMap task() {
  EnvMap env = batch();
  env["SLURM_STEP_ID"] = "0";
  env["SLURM_STEP_NODELIST"] = "n[1-2]";
  env["SLURM_STEP_NUM_NODES"] = "2";
  env["SLURM_STEP_TASKS_PER_NODE"] = "1(x2)";
  env["SLURM_NODEID"] = "1";
  env["SLURM_PROCID"] = "1";
  env["SLURMD_NODENAME"] = "n2";
  env["SLURM_LAUNCH_NODE_IPADDR"] = "10.0.0.1";
  return env;
}

SlurmPlace place_in(const EnvMap& environment) {
  auto place = or_throw(read_slurm(environment));
  if (!place) throw std::logic_error("no allocation was seen");
  return *place;
}

std::string fault_of(const EnvMap& environment) {
  const auto place = read_slurm(environment);
  return place ? "none" : place.error().message();
}

std::vector<int> counts(std::string_view text) {
  return or_throw(expand_task_counts("COUNTS", text));
}

TEST(SlurmEnvironment, OutsideOfAnAllocationThereIsNoPlace) {
  EXPECT_FALSE(or_throw(read_slurm({{"PATH", "/bin"}, {"SLURM_CONF", "/etc/slurm.conf"}})));
}

TEST(SlurmEnvironment, Fault69TheEndOfTheAllocationIsKnown) {
  EnvMap env = batch();
  EXPECT_TRUE(place_in(env).end.is_there);
  EXPECT_EQ(place_in(env).end.end_seconds, 0);
  EXPECT_EQ(place_in(env).end.kill_wait_seconds, 30);
  env["SLURM_JOB_END_TIME"] = "1795000000";
  env["ACCEL_SLURM_KILL_WAIT"] = "60";
  EXPECT_EQ(place_in(env).end.end_seconds, 1795000000);
  EXPECT_EQ(place_in(env).end.kill_wait_seconds, 60);
  env["SLURM_JOB_END_TIME"] = "soon";
  EXPECT_THAT(fault_of(env), HasSubstr("SLURM_JOB_END_TIME"));
}

TEST(SlurmEnvironment, TheBatchScriptSeesTheNodesOfTheJob) {
  const SlurmPlace place = place_in(batch());

  EXPECT_EQ(place.role, SlurmRole::kBatch);
  EXPECT_EQ(place.job_id, "17");
  EXPECT_EQ(place.cluster, "alps");
  EXPECT_EQ(place.node_name, "n1");
  EXPECT_THAT(place.hosts, ElementsAre("n1", "n2"));
}

TEST(SlurmEnvironment, ATaskKnowsItsNodeAndItsStep) {
  const SlurmPlace place = place_in(task());

  EXPECT_EQ(place.role, SlurmRole::kTask);
  EXPECT_EQ(place.node_index, 1);
  EXPECT_EQ(place.local_id, 0);
  EXPECT_EQ(place.tasks_on_node, 1);
  EXPECT_EQ(place.node_name, "n2");
  EXPECT_EQ(place.launch_address, "10.0.0.1");
}

TEST(SlurmEnvironment, AStepOfOneNodeInAJobOfManyIsOneNode) {
  EnvMap env = task();
  env["SLURM_STEP_NODELIST"] = "n2";
  env["SLURM_STEP_NUM_NODES"] = "1";
  env["SLURM_STEP_TASKS_PER_NODE"] = "4";
  env["SLURM_NODEID"] = "0";
  env["SLURM_LOCALID"] = "3";

  const SlurmPlace place = place_in(env);

  EXPECT_THAT(place.hosts, ElementsAre("n2"));
  EXPECT_EQ(place.tasks_on_node, 4);
  EXPECT_EQ(place.local_id, 3);
}

// salloc with use_interactive_step runs the user's shell in a step with a number of SLURM's own.
TEST(SlurmEnvironment, TheShellOfSallocIsNoTask) {
  EnvMap env = batch();
  env["SLURM_STEP_ID"] = "4294967290";
  EXPECT_EQ(place_in(env).role, SlurmRole::kBatch);
}

TEST(SlurmEnvironment, TaskCountsExpandForEachNode) {
  EXPECT_THAT(counts("1"), ElementsAre(1));
  EXPECT_THAT(counts("2(x3),1"), ElementsAre(2, 2, 2, 1));
  EXPECT_THAT(counts("8,4(x2),1(x1)"), ElementsAre(8, 4, 4, 1));
}

TEST(SlurmEnvironment, BadTaskCountsAreRefused) {
  for (const char* text : {"",
                           ",",
                           "1,",
                           "0",
                           "-1",
                           "2(x0)",
                           "2(x)",
                           "2(x3",
                           "2(3)",
                           "2 (x3)",
                           "a",
                           "1(x99999999)",
                           "99999999999"}) {
    const auto result = expand_task_counts("SLURM_TASKS_PER_NODE", text);
    ASSERT_FALSE(result) << text;
    EXPECT_EQ(result.error().code(), ErrorCode::kEnvInvalid);
    EXPECT_THAT(result.error().message(), HasSubstr("SLURM_TASKS_PER_NODE"));
  }
}

TEST(SlurmEnvironment, SeveralNodesWithoutNamesAreNotOne) {
  EnvMap env = batch();
  env.erase("SLURM_JOB_NODELIST");
  EXPECT_THAT(fault_of(env), HasSubstr("the names of 2 nodes"));
}

TEST(SlurmEnvironment, ValuesThatContradictOneAnotherAreNamed) {
  EnvMap env = batch();
  env["SLURM_JOB_NODELIST"] = "n[1-3]";
  EXPECT_THAT(
      fault_of(env),
      HasSubstr(
          "SLURM_JOB_NODELIST is 'n[1-3]', expected as many hosts as SLURM_JOB_NUM_NODES says, 2"));
  env["SLURM_JOB_NODELIST"] = "n[1-";
  EXPECT_THAT(fault_of(env), HasSubstr("a list of hosts"));
  env = task();
  env["SLURM_NODEID"] = "2";
  EXPECT_THAT(fault_of(env), HasSubstr("SLURM_NODEID is '2', expected a whole number from 0 to 1"));
  env = task();
  env["SLURM_STEP_TASKS_PER_NODE"] = "1(x3)";
  EXPECT_THAT(fault_of(env), HasSubstr("2 nodes' counts"));
}

}  // namespace
}  // namespace accel::launcher::slurm_environment_test
