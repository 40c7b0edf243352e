#include <numeric>
#include <set>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <accel/topology.h>

namespace accel::topology_test {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

Topology machine(const std::string& description,
                 const std::optional<std::vector<int>>& granted = std::nullopt) {
  return or_throw(synthetic_topology(description, granted));
}

TEST(Topology, SiblingsOfACoreStayTogether) {
  const Topology topology = machine("package:1 [numa] core:2 pu:2");

  EXPECT_THAT(topology.cores, ElementsAre(Core{{0, 1}, 0}, Core{{2, 3}, 0}));
}

TEST(Topology, CoresKnowTheirMemoryNode) {
  const Topology topology = machine("package:2 [numa] core:2 pu:1");

  EXPECT_THAT(topology.cores,
              ElementsAre(Core{{0}, 0}, Core{{1}, 0}, Core{{2}, 1, 1, 1}, Core{{3}, 1, 1, 1}));
}

TEST(Topology, OnlyGrantedThreadsCount) {
  const Topology topology = machine("package:2 [numa] core:2 pu:2", std::vector<int>{1, 4, 5});

  EXPECT_THAT(topology.cores, ElementsAre(Core{{1}, 0}, Core{{4, 5}, 1, 1, 1}));
}

TEST(Topology, AMaskWithoutAnyCoreIsAnError) {
  const Result<Topology> topology =
      synthetic_topology("package:1 [numa] core:2 pu:1", std::vector<int>{9});

  ASSERT_FALSE(topology);
  EXPECT_EQ(topology.error().code(), ErrorCode::kTopology);
}

TEST(Topology, ADescriptionThatHwlocRefusesIsAnError) {
  EXPECT_FALSE(synthetic_topology("two cores"));
}

TEST(Topology, TheRealMachineHasACore) {
  const Result<Topology> topology = read_topology();

  ASSERT_TRUE(topology);
  EXPECT_FALSE(topology->cores.empty());
}

TEST(AffinityPlan, DividesCoresEvenlyWithSiblings) {
  const AffinityPlan plan =
      plan_affinity(machine("package:1 [numa] core:4 pu:2"), 2, AffinityMode::kExclusive);

  EXPECT_THAT(plan.workers,
              ElementsAre(WorkerShare{{0, 1, 2, 3}, 2, 0}, WorkerShare{{4, 5, 6, 7}, 2, 0}));
  EXPECT_EQ(plan.max_workers_per_core, 1);
}

TEST(AffinityPlan, WorkersFollowTheMemoryNodes) {
  const AffinityPlan plan =
      plan_affinity(machine("package:2 [numa] core:4 pu:1"), 2, AffinityMode::kExclusive);

  EXPECT_EQ(plan.workers[0].numa_node, 0);
  EXPECT_EQ(plan.workers[1].numa_node, 1);
}

TEST(AffinityPlan, AWorkerOverTwoMemoryNodesHasNone) {
  const AffinityPlan plan =
      plan_affinity(machine("package:2 [numa] core:2 pu:1"), 1, AffinityMode::kExclusive);

  EXPECT_EQ(plan.workers[0].numa_node, std::nullopt);
}

TEST(AffinityPlan, UnevenSharesDifferByOneAndUseEveryCoreOnce) {
  const AffinityPlan plan =
      plan_affinity(machine("package:1 [numa] core:8 pu:1"), 3, AffinityMode::kExclusive);

  std::set<int> used;
  int total = 0;
  for (const WorkerShare& share : plan.workers) {
    EXPECT_GE(share.num_threads, 2);
    EXPECT_LE(share.num_threads, 3);
    used.insert(share.cpus.begin(), share.cpus.end());
    total += static_cast<int>(share.cpus.size());
  }
  EXPECT_EQ(used.size(), 8u);
  EXPECT_EQ(total, 8);
}

TEST(AffinityPlan, MoreWorkersThanCoresAreSpread) {
  const AffinityPlan plan =
      plan_affinity(machine("package:1 [numa] core:2 pu:1"), 5, AffinityMode::kExclusive);

  std::vector<int> first_cpus;
  for (const WorkerShare& share : plan.workers) {
    ASSERT_EQ(share.cpus.size(), 1u);
    EXPECT_EQ(share.num_threads, 1);
    first_cpus.push_back(share.cpus[0]);
  }
  EXPECT_THAT(first_cpus, ElementsAre(0, 0, 0, 1, 1));
  EXPECT_EQ(plan.max_workers_per_core, 3);
}

TEST(AffinityPlan, WithoutBindingOnlyThreadsAreDivided) {
  const AffinityPlan plan =
      plan_affinity(machine("package:1 [numa] core:6 pu:2"), 2, AffinityMode::kNone);

  for (const WorkerShare& share : plan.workers) {
    EXPECT_THAT(share.cpus, IsEmpty());
    EXPECT_EQ(share.num_threads, 3);
    EXPECT_EQ(share.numa_node, std::nullopt);
  }
}

TEST(Topology, CoresKnowTheirPackageAndLastCache) {
  const Topology topology = machine("package:2 [numa] l3:2 core:1 pu:1");

  EXPECT_THAT(
      topology.cores,
      ElementsAre(Core{{0}, 0, 0, 0}, Core{{1}, 0, 0, 1}, Core{{2}, 1, 1, 2}, Core{{3}, 1, 1, 3}));
}

TEST(AffinityPlan, AWholeMemoryNodeIsSharedByItsWorkersInThreadsAlone) {
  const AffinityPlan plan =
      plan_affinity(machine("package:2 [numa] core:4 pu:1"), 4, AffinityMode::kNode);

  EXPECT_THAT(plan.workers,
              ElementsAre(WorkerShare{{0, 1, 2, 3}, 2, 0},
                          WorkerShare{{0, 1, 2, 3}, 2, 0},
                          WorkerShare{{4, 5, 6, 7}, 2, 1},
                          WorkerShare{{4, 5, 6, 7}, 2, 1}));
  EXPECT_EQ(plan.max_workers_per_core, 1);
}

TEST(AffinityPlan, APackageOfSeveralMemoryNodesIsNoMemoryNode) {
  const Topology topology = machine("package:2 group:2 [numa] core:2 pu:1");
  const AffinityPlan sockets = plan_affinity(topology, 2, AffinityMode::kSocket);

  EXPECT_THAT(sockets.workers,
              ElementsAre(WorkerShare{{0, 1, 2, 3}, 4, std::nullopt},
                          WorkerShare{{4, 5, 6, 7}, 4, std::nullopt}));
  EXPECT_THAT(numa_nodes_of(topology, sockets.workers[1].cpus), ElementsAre(2, 3));
  EXPECT_THAT(plan_affinity(topology, 1, AffinityMode::kNode).workers[0].cpus, ElementsAre(2, 3));
}

TEST(AffinityPlan, WorkersOfOneLastCacheKeepToIt) {
  const AffinityPlan plan =
      plan_affinity(machine("package:1 [numa] l3:4 core:2 pu:2"), 2, AffinityMode::kL3);

  EXPECT_THAT(plan.workers[0].cpus, ElementsAre(0, 1, 2, 3));
  EXPECT_THAT(plan.workers[1].cpus, ElementsAre(8, 9, 10, 11));
}

TEST(AffinityPlan, DomainsGetWorkersByTheirGrantedCores) {
  const AffinityPlan plan =
      plan_affinity(machine("package:2 [numa] core:4 pu:1", std::vector<int>{3, 4, 5, 6}),
                    4,
                    AffinityMode::kNode);

  EXPECT_THAT(plan.workers[0].cpus, ElementsAre(3));
  for (int worker = 1; worker < 4; ++worker) {
    EXPECT_THAT(plan.workers[static_cast<size_t>(worker)].cpus, ElementsAre(4, 5, 6));
    EXPECT_EQ(plan.workers[static_cast<size_t>(worker)].num_threads, 1);
  }
}

TEST(AffinityPlan, MoreWorkersThanCoresOfADomainAreCounted) {
  const AffinityPlan plan =
      plan_affinity(machine("package:2 [numa] core:1 pu:2"), 6, AffinityMode::kSocket);

  EXPECT_EQ(plan.max_workers_per_core, 3);
  EXPECT_EQ(plan.workers[0].num_threads, 1);
  EXPECT_THAT(plan.workers[5].cpus, ElementsAre(2, 3));
}

TEST(CpuList, JoinsNeighbours) {
  EXPECT_EQ(format_cpu_list({0, 1, 2, 3, 8, 10, 11}), "0-3,8,10-11");
  EXPECT_EQ(format_cpu_list({}), "");
  EXPECT_EQ(format_cpu_list({5}), "5");
}

}  // namespace
}  // namespace accel::topology_test
