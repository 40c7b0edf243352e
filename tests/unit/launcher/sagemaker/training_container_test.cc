#include "launcher/start/sagemaker/training_container.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/launch_plan_fixture.h"

namespace accel::launcher::training_container_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::string no_file() {
  return "";
}

TEST(TrainingContainer, TheToolkitsVariablesSayWhereItIs) {
  const auto here = or_throw(read_training_container(
      {{"SM_HOSTS", R"(["algo-1","algo-2"])"}, {"SM_CURRENT_HOST", "algo-2"}, {"SM_NUM_GPUS", "8"}},
      no_file));

  ASSERT_TRUE(here);
  EXPECT_THAT(here->hosts, ElementsAre("algo-1", "algo-2"));
  EXPECT_EQ(here->index, 1);
  EXPECT_EQ(here->num_gpus, 8);
}

TEST(TrainingContainer, WithoutThemItsFileDoes) {
  const auto here = or_throw(read_training_container({}, [] {
    return std::string(
        R"({"current_host":"algo-1","hosts":["algo-1","algo-2"],"network_interface_name":"eth0"})");
  }));

  ASSERT_TRUE(here);
  EXPECT_EQ(here->index, 0);
  EXPECT_FALSE(or_throw(read_training_container({}, no_file)));
}

TEST(TrainingContainer, WhatCannotBeReadIsNamed) {
  const auto message = [](const EnvMap& environment, const std::string& file) {
    const auto here = read_training_container(environment, [&] { return file; });
    if (here) throw std::logic_error("it was read");
    EXPECT_EQ(here.error().code(), ErrorCode::kEnvInvalid);
    return here.error().message();
  };

  EXPECT_THAT(message({{"SM_HOSTS", "algo-1"}}, ""), HasSubstr("SM_HOSTS is 'algo-1'"));
  EXPECT_THAT(message({{"SM_HOSTS", "[1]"}}, ""), HasSubstr("SM_HOSTS"));
  EXPECT_THAT(message({{"SM_HOSTS", R"(["a"])"}, {"SM_CURRENT_HOST", "b"}}, ""),
              HasSubstr("SM_CURRENT_HOST is 'b'"));
  EXPECT_THAT(
      message({{"SM_HOSTS", R"(["a"])"}, {"SM_CURRENT_HOST", "a"}, {"SM_NUM_GPUS", "x"}}, ""),
      HasSubstr("SM_NUM_GPUS is 'x'"));
  EXPECT_THAT(message({}, "{\"hosts\": [\"a\"]}"), HasSubstr("resourceconfig.json"));
}

TEST(TrainingContainer, TheHostsAreTheMachinesOfALaunchThatSaysNothingElse) {
  const TrainingContainer here{.hosts = {"algo-1", "algo-2"}, .index = 1, .num_gpus = 4};
  CommandLine line;
  join_training_job(line, nullptr, here, {});

  EXPECT_EQ(line.text("num_machines"), "2");
  EXPECT_EQ(line.text("machine_rank"), "1");
  EXPECT_EQ(line.text("main_process_ip"), "algo-1");
  EXPECT_EQ(line.text("num_processes"), "8");

  CommandLine said;
  said.given["num_machines"] = "1";
  join_training_job(said, nullptr, here, {});
  EXPECT_EQ(said.text("num_machines"), "1");
  EXPECT_FALSE(said.has("machine_rank"));
}

// Launches in a container of two hosts with eight GPUs each.
class TrainingContainerLaunch : public test::LaunchPlanFixture {
 protected:
  TrainingContainerLaunch() {
    num_gpus_ = 8;
    host_.environment["SM_HOSTS"] = R"(["algo-1","algo-2"])";
    host_.environment["SM_CURRENT_HOST"] = "algo-2";
    host_.environment["SM_NUM_GPUS"] = "8";
  }

  // Workers of this machine, when there are two machines.
  int workers(const Words& words) {
    const LaunchPlan here = plan(words);
    return machines_of(here) && machines_of(here)->num_machines == 2
               ? static_cast<int>(here.spec.workers.size())
               : -1;
  }
};

TEST_F(TrainingContainerLaunch, EveryHostHasAWorkerForEachGpu) {
  EXPECT_EQ(workers({"--no_python"}), 8);
  host_.is_torchrun = true;
  EXPECT_EQ(workers({"--no_python"}), 8);
}

TEST_F(TrainingContainerLaunch, TorchrunsWordsForTheNumberOfWorkersHold) {
  EXPECT_EQ(workers({"--no_python", "--nproc_per_node", "4"}), 4);
  host_.is_torchrun = true;
  EXPECT_EQ(workers({"--no_python", "--nproc_per_node", "4"}), 4);
  EXPECT_EQ(workers({"--no_python", "--nproc_per_node", "gpu"}), 8);
  host_.environment["PET_NPROC_PER_NODE"] = "2";
  EXPECT_EQ(workers({"--no_python"}), 2);
  host_.is_torchrun = false;
  EXPECT_EQ(workers({"--no_python"}), 2);
}

TEST_F(TrainingContainerLaunch, TorchrunsWordsForTheMachinesHold) {
  host_.is_torchrun = true;
  const LaunchPlan said =
      plan({"--no_python", "--nnodes", "3", "--node_rank", "2", "--master_addr", "gpu-01"});
  ASSERT_TRUE(machines_of(said));
  EXPECT_EQ(machines_of(said)->num_machines, 3);
  EXPECT_FALSE(machines_of(plan({"--no_python", "--standalone"})));

  host_.environment["PET_NNODES"] = "4";
  host_.environment["PET_NODE_RANK"] = "3";
  host_.environment["PET_MASTER_ADDR"] = "gpu-01";
  const LaunchPlan by_variables = plan({"--no_python"});
  ASSERT_TRUE(machines_of(by_variables));
  EXPECT_EQ(machines_of(by_variables)->num_machines, 4);
  EXPECT_EQ(machines_of(by_variables)->machine_rank, 3);
}

TEST_F(TrainingContainerLaunch, TorchrunsPortIsTheMainProcesss) {
  host_.is_torchrun = true;
  EXPECT_EQ(machines_of(plan({"--no_python", "--master_port", "4000"}))->port, 4000);
  host_.environment["PET_MASTER_PORT"] = "4001";
  EXPECT_EQ(machines_of(plan({"--no_python"}))->port, 4001);
}

}  // namespace
}  // namespace accel::launcher::training_container_test
