#include "launcher/start/slurm/slurm_machines.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "launcher/plan/dry_run.h"
#include "tests/support/launch_plan_fixture.h"

namespace accel::launcher::slurm_machines_test {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::Not;

SlurmPlace task_of_two() {
  return {.role = SlurmRole::kTask,
          .job_id = "7",
          .node_name = "n2",
          .node_index = 1,
          .hosts = {"n1", "n2"}};
}

CommandLine with(std::map<std::string, std::string, std::less<>> given) {
  CommandLine line;
  line.given = std::move(given);
  return line;
}

TEST(SlurmMachines, WithoutAnAddressTheyAreTheNodesOfTheStep) {
  const auto machines = or_throw(choose_slurm_machines({}, task_of_two(), 2));

  EXPECT_TRUE(machines.are_nodes);
  EXPECT_FALSE(machines.rank);
}

TEST(SlurmMachines, WithAnAddressAloneTheRankIsThatOfTheNode) {
  const auto machines =
      or_throw(choose_slurm_machines(with({{"main_process_ip", "n1"}}), task_of_two(), 2));

  EXPECT_FALSE(machines.are_nodes);
  EXPECT_EQ(machines.rank, 1);
}

TEST(SlurmMachines, ARankOrOutsideOfSlurmTheUsersWordHolds) {
  for (const auto& machines :
       {choose_slurm_machines(with({{"machine_rank", "0"}}), task_of_two(), 2),
        choose_slurm_machines({}, std::nullopt, 2),
        choose_slurm_machines({}, task_of_two(), 1)}) {
    ASSERT_TRUE(machines);
    EXPECT_FALSE(machines->are_nodes);
    EXPECT_FALSE(machines->rank);
  }
}

TEST(SlurmMachines, AnotherNumberOrSeveralTasksOnANodeAreRefused) {
  const auto other = choose_slurm_machines({}, task_of_two(), 4);
  ASSERT_FALSE(other);
  EXPECT_THAT(other.error().message(),
              AllOf(HasSubstr("--num_machines is 4"), HasSubstr("2 nodes")));
  EXPECT_THAT(other.error().remedy(), HasSubstr("--nodes=4"));

  SlurmPlace crowded = task_of_two();
  crowded.tasks_on_node = 4;
  EXPECT_THAT(choose_slurm_machines(with({{"main_process_ip", "n1"}}), crowded, 2).error().remedy(),
              HasSubstr("--ntasks-per-node=1"));
}

class SlurmPlan : public test::LaunchPlanFixture {
 protected:
  SlurmPlan() {
    for (const auto& [name, value] : EnvMap{{"SLURM_JOB_ID", "7"},
                                            {"SLURM_STEP_ID", "0"},
                                            {"SLURM_PROCID", "1"},
                                            {"SLURM_NODEID", "1"},
                                            {"SLURM_LOCALID", "0"},
                                            {"SLURMD_NODENAME", "n2"},
                                            {"SLURM_STEP_NODELIST", "n[1-2]"},
                                            {"SLURM_JOB_NODELIST", "n[1-2]"},
                                            {"SLURM_STEP_NUM_NODES", "2"},
                                            {"SLURM_STEP_TASKS_PER_NODE", "1(x2)"}}) {
      host_.environment[name] = value;
    }
  }
  Words of_file() {
    return file(
        "distributed_type: MULTI_CPU\nuse_cpu: true\nnum_machines: 2\nmachine_rank: 0\n"
        "num_processes: 4\n");
  }
};

// The file is the same on every node, and its machine_rank 0 would be claimed twice.
TEST_F(SlurmPlan, AFileForSeveralMachinesRunsOnTheNodesOfTheStep) {
  const LaunchPlan result = plan(of_file());

  ASSERT_TRUE(nodes_of(result));
  EXPECT_EQ(nodes_of(result)->node_index, 1);
  EXPECT_EQ(nodes_of(result)->min_nodes, 2);
  EXPECT_EQ(result.spec.workers.size(), 2U);
}

TEST_F(SlurmPlan, TheDryRunShowsTheNodesAndWhatIsKnownOfThisOne) {
  const std::string task = render_dry_run(plan(of_file()));
  EXPECT_THAT(task, HasSubstr("nodes       2: n1, n2; this one is n2, number 1\n"));
  EXPECT_THAT(task, HasSubstr("store       on one of the nodes"));
  EXPECT_THAT(task, HasSubstr("environment of rank 2, "));
  for (const char* known : {"RANK=2", "WORLD_SIZE=4", "GROUP_RANK=1", "GROUP_WORLD_SIZE=2"})
    EXPECT_THAT(task, HasSubstr("  " + std::string(known) + "\n"));
  EXPECT_THAT(task, HasSubstr("  MASTER_ADDR is decided when the nodes meet\n"));
  EXPECT_THAT(task, Not(HasSubstr("127.0.0.1")));

  const std::string range =
      render_dry_run(plan({"--cpu", "--nproc_per_node", "2", "--nnodes", "1:2"}));
  EXPECT_THAT(range, HasSubstr("nodes       1 to 2"));
  EXPECT_THAT(range, HasSubstr("environment of local rank 0, "));
  EXPECT_THAT(range, HasSubstr("  WORLD_SIZE is decided when the nodes meet\n"));
}

TEST_F(SlurmPlan, NumProcessesCountsThoseOfAllNodes) {
  EXPECT_EQ(plan({"--cpu", "--num_processes", "4"}).spec.workers.size(), 2U);
  EXPECT_EQ(plan({"--cpu", "--num_processes", "4", "--nnodes", "2"}).spec.workers.size(), 2U);
  EXPECT_EQ(plan({"--cpu", "--nproc_per_node", "4"}).spec.workers.size(), 4U);
  EXPECT_EQ(plan({"--cpu"}).spec.workers.size(), 1U);
}

TEST_F(SlurmPlan, NumProcessesWithARangeNamesTheFlagToGive) {
  const Error error = refused({"--cpu", "--num_processes", "4", "--nnodes", "1:2"});

  EXPECT_THAT(error.message(),
              AllOf(HasSubstr("--num_processes counts the processes of all nodes"),
                    HasSubstr("--nnodes 1:2 leaves open how many nodes there are")));
  EXPECT_THAT(error.remedy(), HasSubstr("--nproc_per_node N"));
}

TEST_F(SlurmPlan, OneNodeSaysHowTheProcessesAreDivided) {
  const std::string told = "--num_processes 4 counts those of all 2 nodes: 2 on each";
  EXPECT_THAT(plan({"--cpu", "--num_processes", "4"}).notices, Not(Contains(told)));

  host_.environment["SLURM_PROCID"] = host_.environment["SLURM_NODEID"] = "0";
  host_.environment["SLURMD_NODENAME"] = "n1";

  EXPECT_THAT(plan({"--cpu", "--num_processes", "4"}).notices, Contains(told));
  EXPECT_THAT(plan({"--cpu", "--nproc_per_node", "2"}).notices, Not(Contains(told)));
}

TEST_F(SlurmPlan, ProcessesThatDoNotDivideAreRefused) {
  Words words = of_file();
  words.insert(words.end(), {"--num_processes", "3"});

  EXPECT_THAT(refused(words).message(), AllOf(HasSubstr("3"), HasSubstr("2 nodes")));
}

TEST_F(SlurmPlan, AnAddressMakesItALaunchOnMachinesWithTheNodesRank) {
  const LaunchPlan result = plan({"--cpu",
                                  "--num_machines",
                                  "2",
                                  "--num_processes",
                                  "2",
                                  "--main_process_ip",
                                  "n1",
                                  "--main_process_port",
                                  "29500"});

  ASSERT_TRUE(machines_of(result));
  EXPECT_EQ(machines_of(result)->machine_rank, 1);
}

}  // namespace
}  // namespace accel::launcher::slurm_machines_test
