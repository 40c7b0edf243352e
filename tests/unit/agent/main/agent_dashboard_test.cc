#include "agent/main/agent_dashboard.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "agent/cluster/job_view.h"
#include "agent/main/agent_metrics.h"
#include "agent/main/dashboard_actions.h"

namespace accel::agent::agent_dashboard_test {
namespace {

using namespace std::chrono_literals;
using supervisor::DashboardState;
using ::testing::HasSubstr;

constexpr TimePoint kNow{1000s};

State cluster_of(int num_nodes) {
  State state;
  for (int i = 0; i < num_nodes; ++i) {
    Node& node = state.nodes["node-" + std::to_string(i)];
    node.liveness = i == 3 ? Liveness::kLost : i == 4 ? Liveness::kSuspect : Liveness::kLive;
    node.is_drained = i == 5;
  }
  auto description = std::make_shared<JobDescription>();
  description->job_id = "train";
  description->job_uuid = "u1";
  description->user = "ann";
  Job& job = state.jobs["u1"];
  job.description = std::move(description);
  job.phase = JobPhase::kRunning;
  job.generation = 2;
  job.ledger.open = Account::kProductive;
  job.ledger.since = kNow - 75s;
  for (int i = 0; i < num_nodes; ++i) {
    Member member;
    member.node_id = "node-" + std::to_string(i);
    member.first_rank = 2 * i;
    member.num_ranks = 2;
    member.steps = {{.step = 40, .reported_at = kNow - 1s}, {}};
    job.members.push_back(member);
  }
  return state;
}

TEST(AgentDashboard, ShowsOf200NodesWhatTheMetricsCount) {
  const State state = cluster_of(200);
  DashboardState shown;
  add_coordinator(shown, state, kNow);
  supervisor::MetricPage page;
  add_coordinator(page, state, kNow);

  std::map<std::string, int> states;
  for (const auto& node : shown.nodes) ++states[node.state];
  ASSERT_EQ(shown.nodes.size(), 200u);
  for (const auto& [label, count] : states)
    EXPECT_THAT(page.text(),
                HasSubstr("accel_rendezvous_nodes{state=\"" + label + "\"} " +
                          std::to_string(count) + "\n"));
  EXPECT_EQ(states["drained"], 1);
}

TEST(AgentDashboard, ShowsOfAJobWhatControlSays) {
  const State state = cluster_of(2);
  DashboardState shown;
  add_coordinator(shown, state, kNow);

  ASSERT_EQ(shown.jobs.size(), 1u);
  const supervisor::DashboardJob& job = shown.jobs.front();
  const v1::Job view = view_of(state, state.jobs.at("u1"));
  const v1::Ledger ledger = view_of(state.jobs.at("u1").ledger, kNow);
  EXPECT_EQ(job.state, "running");
  EXPECT_EQ(job.generation, view.generation());
  EXPECT_EQ(job.restarts, view.restarts());
  EXPECT_EQ(job.ledger.of(Account::kProductive),
            std::chrono::seconds(ledger.productive().seconds()));
  ASSERT_EQ(job.ranks.size(), 4u);
  EXPECT_EQ(job.ranks[2].node, "node-1");
  EXPECT_EQ(job.ranks[2].rank, 2);
  EXPECT_EQ(job.ranks[2].step, 40u);
  EXPECT_EQ(job.ranks[2].silent_seconds, 1);
  EXPECT_FALSE(job.ranks[3].reports);
}

TEST(AgentDashboard, TellsWhoseStacksATitleIsAbout) {
  EXPECT_TRUE(is_about_rank("rank 3, pid 77", 3));
  EXPECT_TRUE(is_about_rank("node rank 3, rank 4, pid 77", 4));
  EXPECT_FALSE(is_about_rank("node rank 3, rank 4, pid 77", 3));
  EXPECT_FALSE(is_about_rank("rank 31, pid 77", 3));
  EXPECT_FALSE(is_about_rank("node a", 3));
}

}  // namespace
}  // namespace accel::agent::agent_dashboard_test
