#include "launcher/start/slurm/slurm_nodes.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace accel::launcher::slurm_nodes_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using Range = std::pair<int, int>;

SlurmPlace batch() {
  SlurmPlace place;
  place.job_id = "17";
  place.cluster = "alps";
  place.node_name = "n1";
  place.hosts = place.job_hosts = {"n1", "n2", "n3"};
  return place;
}

SlurmPlace task(int index) {
  SlurmPlace place = batch();
  place.role = SlurmRole::kTask;
  place.step_id = "4";
  place.node_index = index;
  place.node_name = place.hosts[static_cast<std::size_t>(index)];
  place.launch_address = "10.0.0.1";
  return place;
}

SlurmPlace task_of_one_node() {
  SlurmPlace place = task(0);
  place.hosts = {"n1"};
  return place;
}

SlurmRequest request(std::optional<Range> num_nodes = {}) {
  return {
      .num_nodes = num_nodes, .starter_folder = "", .base_folder = "/home/u", .unique = "9-abc"};
}

std::optional<ElasticSettings> planned(const SlurmPlace& place,
                                       const SlurmRequest& requested = request()) {
  return or_throw(plan_slurm_nodes(place, requested));
}

Error refused(const SlurmPlace& place, const SlurmRequest& requested = request()) {
  auto result = plan_slurm_nodes(place, requested);
  if (result) throw std::logic_error("it was accepted");
  return result.error();
}

TEST(SlurmNodes, TheBatchScriptOfManyNodesStartsThemAll) {
  const auto settings = planned(batch());

  ASSERT_TRUE(settings);
  EXPECT_EQ(settings->meeting, Meeting::kStarter);
  EXPECT_EQ(Range(settings->min_nodes, settings->max_nodes), Range(3, 3));
  EXPECT_THAT(settings->expected_hosts, ElementsAre("n1", "n2", "n3"));
  EXPECT_EQ(settings->job_folder, "/home/u/.accel-slurm-alps-17.9-abc-0");
}

TEST(SlurmNodes, TheFirstTaskHostsAndTheOthersComeToIt) {
  const auto first = planned(task(0));
  const auto third = planned(task(2));

  EXPECT_EQ(first->meeting, Meeting::kHostNode);
  EXPECT_EQ(third->meeting, Meeting::kNode);
  EXPECT_EQ(third->node_index, 2);
  EXPECT_EQ(third->node_id, "n3");
  EXPECT_EQ(first->job_folder, third->job_folder);
  EXPECT_EQ(first->job_folder, "/home/u/.accel-slurm-alps-17.4-0");
  EXPECT_THAT(third->launch_address, IsEmpty());
}

TEST(SlurmNodes, AJobThatWasQueuedAgainHasAnotherFolder) {
  SlurmPlace place = task(1);
  place.restart_count = 2;
  EXPECT_THAT(planned(place)->job_folder, HasSubstr("17.4-2"));
}

TEST(SlurmNodes, ANodeOfAStarterHasItsFolderAndTheAddressOfItsMachine) {
  SlurmRequest requested = request();
  requested.starter_folder = "/home/u/.accel-slurm-x";

  const auto settings = planned(task(0), requested);

  EXPECT_EQ(settings->meeting, Meeting::kNode);
  EXPECT_EQ(settings->job_folder, "/home/u/.accel-slurm-x");
  EXPECT_EQ(settings->launch_address, "10.0.0.1");
}

// It is alone in a step of its own.
TEST(SlurmNodes, AReplacedLauncherKeepsItsNodesIndexInTheJob) {
  SlurmPlace place = task_of_one_node();
  place.hosts = {"n2"};
  place.node_name = "n2";
  SlurmRequest requested = request();
  requested.starter_folder = "/home/u/.accel-slurm-x";

  const auto settings = planned(place, requested);

  ASSERT_TRUE(settings);
  EXPECT_EQ(settings->meeting, Meeting::kNode);
  EXPECT_EQ(settings->node_index, 1);
}

TEST(SlurmNodes, FewerNodesThanTheAllocationMayBeAskedFor) {
  const auto settings = planned(batch(), request(Range(1, 2)));
  EXPECT_EQ(Range(settings->min_nodes, settings->max_nodes), Range(1, 2));
  EXPECT_THAT(settings->expected_hosts, IsEmpty());
}

TEST(SlurmNodes, OneNodeIsALaunchOnOneMachine) {
  SlurmPlace one = batch();
  one.hosts = {"n1"};
  EXPECT_FALSE(planned(one));
  EXPECT_FALSE(planned(one, request(Range(1, 1))));
  EXPECT_FALSE(planned(task_of_one_node()));
}

TEST(SlurmNodes, ManyNodesNeverBecomeJobsOfOne) {
  for (const SlurmPlace& place : {batch(), task(1)}) {
    const Error error = refused(place, request(Range(1, 1)));
    EXPECT_EQ(error.code(), ErrorCode::kUsage);
    EXPECT_THAT(error.message(), HasSubstr("--nnodes 1 with 3 nodes"));
    EXPECT_THAT(error.remedy(), HasSubstr("leave --nnodes out"));
  }
}

TEST(SlurmNodes, MoreNodesThanThereAreIsAnError) {
  EXPECT_THAT(refused(batch(), request(Range(2, 4))).message(), HasSubstr("the allocation has 3"));
  EXPECT_THAT(refused(task_of_one_node(), request(Range(2, 2))).message(),
              HasSubstr("up to 2 nodes, and this step of srun has 1"));
}

TEST(SlurmNodes, SeveralTasksOnANodeAreRefusedWithTheLineToUse) {
  SlurmPlace place = task(1);
  place.tasks_on_node = 4;
  EXPECT_THAT(refused(place).message(), HasSubstr("4 tasks on node n2"));
  EXPECT_THAT(refused(place).remedy(),
              HasSubstr("`srun --nodes=3 --ntasks-per-node=1 --cpu-bind=none accel-launch "
                        "--nproc_per_node 4 ...`"));
}

TEST(SlurmNodes, SeveralJobsOfOneNodeAreSomebodysWish) {
  SlurmPlace place = task_of_one_node();
  place.tasks_on_node = 4;
  EXPECT_THAT(refused(place).message(), HasSubstr("4 tasks"));
  EXPECT_FALSE(planned(place, request(Range(1, 1))));
}

TEST(SlurmNodes, TheBatchScriptOfAHeterogeneousJobIsToldHowToUseAllOfIt) {
  SlurmPlace place = batch();
  place.num_components = 2;
  place.hosts = {"n1"};

  EXPECT_THAT(refused(place).message(), HasSubstr("2 components"));
  EXPECT_THAT(refused(place).remedy(), HasSubstr("srun --het-group=0-1 --ntasks-per-node=1"));
  EXPECT_FALSE(planned(place, request(Range(1, 1))));
}

// As SLURM 22.05 sets them in a step of all components.
TEST(SlurmNodes, AStepOfAllComponentsIsOneJob) {
  SlurmPlace place = task(2);
  place.num_components = 2;

  EXPECT_EQ(planned(place)->meeting, Meeting::kNode);
  EXPECT_EQ(planned(place)->max_nodes, 3);
}

}  // namespace
}  // namespace accel::launcher::slurm_nodes_test
