// Which ranks a user may ask a job for.

#include "launcher/cluster/agents/rank_choice.h"

#include <gtest/gtest.h>

namespace accel::cluster::rank_choice_test {
namespace {

v1::Job job_on_one_node(unsigned num_ranks) {
  v1::Job job;
  job.set_job_id("train");
  for (unsigned rank = 0; rank < num_ranks; ++rank) job.add_workers()->set_rank(rank);
  return job;
}

v1::Job job_on_nodes(unsigned num_nodes, unsigned ranks_each) {
  v1::Job job;
  job.set_job_id("train");
  job.set_max_nodes(8);
  for (unsigned i = 0; i < num_nodes; ++i) {
    v1::JobNode& node = *job.add_nodes();
    node.set_first_rank(i * ranks_each);
    node.set_count(ranks_each);
  }
  return job;
}

TEST(RankChoice, ARankThatIsNotThereIsAnErrorWithThoseThatAre) {
  EXPECT_TRUE(check_ranks(job_on_one_node(2), {0, 1}, false));

  const auto checked = check_ranks(job_on_one_node(2), {1, 9}, false);
  ASSERT_FALSE(checked);
  EXPECT_EQ(checked.error().code(), ErrorCode::kUsage);
  EXPECT_EQ(checked.error().message(), "job train has no rank 9, but ranks 0 and 1");
  EXPECT_EQ(check_ranks(job_on_one_node(1), {9}, true).error().message(),
            "job train has no rank 9, but rank 0");
}

TEST(RankChoice, TheRanksOfAllNodesCount) {
  EXPECT_TRUE(check_ranks(job_on_nodes(3, 2), {5}, false));
  EXPECT_EQ(check_ranks(job_on_nodes(3, 2), {6}, false).error().message(),
            "job train has no rank 6, but ranks 0 to 5");

  v1::Job job = job_on_nodes(3, 2);
  job.mutable_nodes()->DeleteSubrange(1, 1);
  EXPECT_EQ(check_ranks(job, {3}, false).error().message(),
            "job train has no rank 3, but ranks 0 and 1, 4 and 5");
}

TEST(RankChoice, OfAJobThatMayGrowOrHasNotBegunNothingIsSaid) {
  EXPECT_TRUE(check_ranks(job_on_nodes(3, 2), {6}, /*may_grow=*/true));
  EXPECT_TRUE(check_ranks(v1::Job(), {6}, false));
}

TEST(RankChoice, NoRankIsEveryRank) {
  EXPECT_TRUE(check_ranks(job_on_one_node(2), {}, false));
}

}  // namespace
}  // namespace accel::cluster::rank_choice_test
