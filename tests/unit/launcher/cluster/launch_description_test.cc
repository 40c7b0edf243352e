// What agents are told of `accel-launch --agent`, against what they check.

#include "launcher/cluster/meeting/launch_description.h"

#include <filesystem>

#include <gtest/gtest.h>

#include "agent/jobs/job_request.h"

namespace accel::cluster::launch_description_test {
namespace {

using launcher::ElasticRequest;
using namespace std::chrono_literals;

ElasticRequest one_node() {
  ElasticRequest request;
  request.settings.meeting = launcher::Meeting::kAgent;
  request.settings.job = "";
  request.spec.job_id = "train-1a2b";
  request.spec.env = {{"A", "1"}, {"PATH", "/bin"}};
  supervisor::WorkerSpec worker;
  worker.argv = {"python3", "train.py"};
  worker.env = {{"OMP_NUM_THREADS", "4"}};
  request.spec.workers = {worker, worker};
  request.spec.restart.max_restarts = 3;
  request.spec.stop.grace = 1'500ms;
  return request;
}

TEST(AgentLaunch, TheAgentGetsTheProgramWithTheEnvironmentOfAWorker) {
  const v1::JobSpec job = describe_for_agents(one_node());

  EXPECT_EQ(job.job_id(), "train-1a2b");
  EXPECT_EQ(job.job_uuid(), "") << "the agent makes it";
  EXPECT_EQ(std::vector<std::string>(job.argv().begin(), job.argv().end()),
            (std::vector<std::string>{"python3", "train.py"}));
  EXPECT_EQ(job.procs_per_node(), 2u);
  EXPECT_EQ(job.env().at("A"), "1");
  EXPECT_EQ(job.env().at("OMP_NUM_THREADS"), "4");
  EXPECT_EQ(job.cwd(), std::filesystem::current_path().string());
  EXPECT_EQ(job.restart().max_restarts(), 3u);
  EXPECT_EQ(job.stop().grace().seconds(), 1);
  EXPECT_EQ(job.stop().grace().nanos(), 500'000'000);
  EXPECT_FALSE(job.hang().enabled());
  EXPECT_FALSE(job.has_affinity());
}

TEST(AgentLaunch, AnAgentTakesWhatItIsGivenForOneNode) {
  ElasticRequest request = one_node();
  request.spec.hang.mode = supervisor::HangMode::kAuto;
  request.spec.workers[0].cpus = {0};
  const v1::JobSpec job = describe_for_agents(request);

  EXPECT_TRUE(agent::check_job_request(job));
  EXPECT_TRUE(agent::check_one_node_request(job));
  EXPECT_EQ(job.affinity().mode(), v1::Affinity::MODE_EXCLUSIVE);
  EXPECT_TRUE(job.hang().auto_());
}

TEST(AgentLaunch, SeveralNodesKeepTheirFenceAndTheTimeToGather) {
  ElasticRequest request = one_node();
  request.settings.job = "mine";
  request.settings.min_nodes = 2;
  request.settings.max_nodes = 4;
  request.settings.join_timeout_seconds = 30;
  request.settings.last_call = 7s;
  request.settings.hard_fencing = true;
  request.spec.hang.mode = supervisor::HangMode::kFixed;
  request.spec.hang.timeout = 90s;
  const v1::JobSpec job = describe_for_agents(request);

  EXPECT_TRUE(agent::check_job_request(job));
  EXPECT_EQ(job.job_id(), "mine");
  EXPECT_EQ(job.min_nodes(), 2u);
  EXPECT_EQ(job.max_nodes(), 4u);
  EXPECT_EQ(job.gather().join_limit().seconds(), 30);
  EXPECT_EQ(job.gather().last_call().seconds(), 7);
  EXPECT_TRUE(job.fence().hard());
  EXPECT_EQ(job.fence().lease().seconds(), 10);
  EXPECT_FALSE(job.fence().has_control_loss_grace()) << "agents come back";
  EXPECT_EQ(job.hang().beat().seconds(), 90);
}

}  // namespace
}  // namespace accel::cluster::launch_description_test
