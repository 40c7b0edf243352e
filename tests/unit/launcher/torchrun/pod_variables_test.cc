// PET_* as a pod of Kubeflow has them, beside flags and files of `accelerate launch`.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/launch_plan_fixture.h"

namespace accel::launcher::pod_variables_test {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::Not;

class PodVariables : public test::LaunchPlanFixture {
 protected:
  PodVariables() {
    host_.environment["PET_NNODES"] = "2";
    host_.environment["PET_NPROC_PER_NODE"] = "1";
    host_.environment["PET_NODE_RANK"] = "1";
    host_.environment["PET_MASTER_ADDR"] = "10.0.0.9";
    host_.environment["PET_MASTER_PORT"] = "29644";
  }
  void meet_by_c10d() {
    for (const char* name : {"PET_NODE_RANK", "PET_MASTER_ADDR", "PET_MASTER_PORT"})
      host_.environment.erase(name);
    host_.environment["PET_RDZV_BACKEND"] = "c10d";
    host_.environment["PET_RDZV_ENDPOINT"] = "10.0.0.9:29644";
    host_.environment["PET_RDZV_ID"] = "job";
  }
  const Words kMachines = {"--cpu",
                           "--num_machines=2",
                           "--num_processes=4",
                           "--machine_rank=1",
                           "--main_process_ip=10.0.0.1",
                           "--main_process_port=29645"};
};

TEST_F(PodVariables, FlagsOfMachinesSayAllOfIt) {
  for (const bool is_c10d : {false, true}) {
    if (is_c10d) meet_by_c10d();
    const LaunchPlan result = plan(kMachines);
    ASSERT_TRUE(machines_of(result));
    EXPECT_EQ(machines_of(result)->num_machines, 2);
    EXPECT_EQ(machines_of(result)->machine_rank, 1);
    EXPECT_EQ(machines_of(result)->address, "10.0.0.1");
    EXPECT_EQ(machines_of(result)->port, 29645);
    EXPECT_EQ(result.spec.identity.world_size, 4);
    EXPECT_EQ(result.spec.identity.run_id, "none");
    EXPECT_THAT(result.notices,
                Contains(HasSubstr("--num_machines says how machines meet, so these have no "
                                   "effect: PET_NNODES, PET_NPROC_PER_NODE")));
  }
}

TEST_F(PodVariables, AFileOfTwoMachinesSaysAllOfIt) {
  const LaunchPlan result =
      plan(file("distributed_type: MULTI_CPU\nuse_cpu: true\nnum_machines: 2\nmachine_rank: 0\n"
                "num_processes: 4\nmain_process_ip: 10.0.0.1\nmain_process_port: 29645\n"));

  ASSERT_TRUE(machines_of(result));
  EXPECT_EQ(machines_of(result)->machine_rank, 0);
  EXPECT_EQ(machines_of(result)->port, 29645);
  EXPECT_EQ(result.spec.identity.world_size, 4);
  EXPECT_THAT(result.notices, Contains(HasSubstr("config.yaml says how machines meet")));
}

TEST_F(PodVariables, OneMachineByFlagOrFileIsOne) {
  for (const Words& words :
       {Words{"--cpu", "--num_machines", "1", "--num_processes", "2"},
        file("distributed_type: MULTI_CPU\nuse_cpu: true\nnum_machines: 1\nnum_processes: 2\n")}) {
    const LaunchPlan result = plan(words);
    EXPECT_FALSE(machines_of(result));
    EXPECT_FALSE(nodes_of(result));
    EXPECT_EQ(result.spec.identity.world_size, 2);
  }
}

TEST_F(PodVariables, OneNodeHasNoRankOfThePod) {
  host_.is_torchrun = true;
  const LaunchPlan result = plan({"--standalone", "--nnodes", "1", "--nproc-per-node", "2"});

  EXPECT_EQ(result.spec.identity.world_size, 2);
  EXPECT_FALSE(machines_of(result));
  EXPECT_THAT(result.notices, Not(Contains(HasSubstr("no effect"))));
  EXPECT_THAT(refused({"--nnodes=1", "--node_rank=1"}).message(),
              HasSubstr("--node-rank is 1 with one machine"));
}

TEST_F(PodVariables, AloneTheySayWhatTorchrunWouldRead) {
  for (const bool is_torchrun : {false, true}) {
    host_.is_torchrun = is_torchrun;
    const LaunchPlan result = plan({});
    ASSERT_TRUE(machines_of(result));
    EXPECT_EQ(machines_of(result)->num_machines, 2);
    EXPECT_EQ(machines_of(result)->machine_rank, 1);
    EXPECT_EQ(machines_of(result)->address, "10.0.0.9");
    EXPECT_EQ(machines_of(result)->port, 29644);
    EXPECT_EQ(result.spec.identity.world_size, 2);
  }
}

TEST_F(PodVariables, ErrorsNameThem) {
  host_.environment["PET_NODE_RANK"] = "2";
  EXPECT_THAT(refused({}).message(),
              HasSubstr("PET_NODE_RANK is 2, expected 0 to 1 with PET_NNODES 2"));
  host_.environment["PET_NODE_RANK"] = "one";
  EXPECT_THAT(refused({}).message(), HasSubstr("PET_NODE_RANK is 'one'"));
  EXPECT_THAT(refused({}).remedy(), HasSubstr("PET_NODE_RANK"));
  host_.environment["PET_NNODES"] = "many";
  EXPECT_THAT(refused({}).message(), HasSubstr("PET_NNODES is 'many'"));
}

}  // namespace
}  // namespace accel::launcher::pod_variables_test
