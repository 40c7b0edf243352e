#include "launcher/devices/gpu_affinity.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/launch_plan_fixture.h"

namespace accel::launcher::gpu_affinity_test {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

NvidiaMachine machine_with(const std::vector<std::vector<int>>& places) {
  NvidiaMachine machine;
  for (const std::vector<int>& cpus : places) machine.gpus.push_back({.cpus = cpus});
  return machine;
}

// GPUs 0 and 1 hang on the second of two nodes of four cores, GPUs 2 and 3 on the first.
const NvidiaMachine kCrossed =
    machine_with({{4, 5, 6, 7}, {4, 5, 6, 7}, {0, 1, 2, 3}, {0, 1, 2, 3}});

Topology two_nodes() {
  return *synthetic_topology("package:2 [numa] core:4 pu:1");
}

TEST(CpusNearGpus, FollowTheVisibleOnesAndBeginAgain) {
  EXPECT_THAT(cpus_near_gpus(machine_with({{0, 1}, {2, 3}}), {}, 3),
              ElementsAre(ElementsAre(0, 1), ElementsAre(2, 3), ElementsAre(0, 1)));
  EXPECT_THAT(cpus_near_gpus(machine_with({{0, 1}, {2, 3}}), {{"CUDA_VISIBLE_DEVICES", "1,0"}}, 2),
              ElementsAre(ElementsAre(2, 3), ElementsAre(0, 1)));
  EXPECT_THAT(cpus_near_gpus(machine_with({{0, 1}, {}}), {}, 2), IsEmpty());
  EXPECT_THAT(cpus_near_gpus({}, {}, 2), IsEmpty());
}

TEST(PlanAffinityNear, WorkersOfOnePlaceDivideItsCores) {
  const AffinityPlan plan =
      plan_affinity_near(two_nodes(), cpus_near_gpus(kCrossed, {}, 4), AffinityMode::kExclusive);

  ASSERT_EQ(plan.workers.size(), 4u);
  EXPECT_THAT(plan.workers[0].cpus, ElementsAre(4, 5));
  EXPECT_THAT(plan.workers[1].cpus, ElementsAre(6, 7));
  EXPECT_THAT(plan.workers[2].cpus, ElementsAre(0, 1));
  EXPECT_THAT(plan.workers[3].cpus, ElementsAre(2, 3));
  EXPECT_EQ(plan.workers[0].num_threads, 2);
  EXPECT_EQ(plan.workers[0].numa_node, 1);
  EXPECT_EQ(plan.max_workers_per_core, 1);
}

TEST(PlanAffinityNear, AWholeNodeIsTheOneOfTheGpu) {
  const AffinityPlan plan =
      plan_affinity_near(two_nodes(), cpus_near_gpus(kCrossed, {}, 1), AffinityMode::kNode);

  EXPECT_THAT(plan.workers[0].cpus, ElementsAre(4, 5, 6, 7));
}

TEST(PlanAffinityNear, LocalityIsGivenUpForCoresThatAreNotGrantedOrTooFew) {
  const Topology first_node = *synthetic_topology("package:2 [numa] core:4 pu:1", {{0, 1, 2, 3}});
  const auto far = cpus_near_gpus(kCrossed, {}, 2);
  EXPECT_EQ(plan_affinity_near(first_node, far, AffinityMode::kExclusive).workers,
            plan_affinity(first_node, 2, AffinityMode::kExclusive).workers);

  const auto crowded = cpus_near_gpus(machine_with({{0}, {0}}), {}, 2);
  EXPECT_EQ(plan_affinity_near(two_nodes(), crowded, AffinityMode::kExclusive).workers,
            plan_affinity(two_nodes(), 2, AffinityMode::kExclusive).workers);
}

class GpuAffinityOfLaunch : public test::LaunchPlanFixture {
 protected:
  GpuAffinityOfLaunch() {
    machine_ = "package:2 [numa] core:4 pu:1";
    num_gpus_ = 4;
    host_.nvidia = [] { return kCrossed; };
  }
};

TEST_F(GpuAffinityOfLaunch, WorkersAreBoundNearTheirGpus) {
  const auto all = plan({"--num_processes", "4", "--enable_cpu_affinity"});
  const auto two = plan({"--num_processes", "2", "--gpu_ids", "2,0", "--numa_binding", "node"});

  EXPECT_THAT(all.spec.workers[0].cpus, ElementsAre(4, 5));
  EXPECT_THAT(all.spec.workers[3].cpus, ElementsAre(2, 3));
  EXPECT_THAT(two.spec.workers[0].cpus, ElementsAre(0, 1, 2, 3));
  EXPECT_THAT(two.spec.workers[1].cpus, ElementsAre(4, 5, 6, 7));
}

TEST_F(GpuAffinityOfLaunch, OnTheCpuAndUnboundGpusDecideNothing) {
  EXPECT_THAT(plan({"--cpu", "--num_processes", "4", "--enable_cpu_affinity"}).spec.workers[0].cpus,
              ElementsAre(0, 1));
  EXPECT_THAT(plan({"--num_processes", "4"}).spec.workers[0].cpus, IsEmpty());
}

}  // namespace
}  // namespace accel::launcher::gpu_affinity_test
