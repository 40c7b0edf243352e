// What a launch inside a program asks the shim for, and what it makes of the outcome.

#include "libaccel/launch/launch_job.h"

#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace accel::launch::launch_job_test {
namespace {

using supervisor::ExitCause;
using supervisor::JobOutcome;
using supervisor::WorkerExit;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

const LaunchPlace kPlace = {.environment = {{"HOME", "/root"}, {"ACCELERATE_USE_CPU", "no"}},
                            .program = "/opt/train",
                            .job_id = "inproc-1-a",
                            .private_folder = "/tmp/accel-inproc-1-a"};

NotebookLauncherOptions two_processes() {
  NotebookLauncherOptions options;
  options.num_processes = 2;
  return options;
}

std::string refusal(const NotebookLauncherOptions& options) {
  const auto spec = plan_notebook_job(kPlace, options);
  if (spec) return "accepted";
  EXPECT_THAT(spec.error().remedy(), Not(IsEmpty()));
  return spec.error().message();
}

TEST(LaunchJob, DebugIsOnTheCpuAndTheLoopback) {
  const auto spec = plan_debug_job(kPlace, 2, "/tmp/meeting");

  ASSERT_TRUE(spec);
  EXPECT_EQ(spec->env,
            (EnvMap{{"ACCELERATE_DEBUG_RDV_FILE", "/tmp/meeting"},
                    {"ACCELERATE_MIXED_PRECISION", "no"},
                    {"ACCELERATE_USE_CPU", "yes"},
                    {"FORK_LAUNCHED", "1"},
                    {"GLOO_SOCKET_IFNAME", "lo"},
                    {"HOME", "/root"}}));
  EXPECT_EQ(spec->store.port, 0);
  EXPECT_EQ(spec->identity.world_size, 2);
  ASSERT_EQ(spec->workers.size(), 2U);
  EXPECT_EQ(spec->workers[1].global_rank, 1);
  EXPECT_EQ(supervisor::job_spec_from_json(supervisor::to_json(*spec))->workers.size(), 2U);
}

TEST(LaunchJob, NotebookTakesThePeersPortUnlessItIsBusy) {
  const auto usual = plan_notebook_job(kPlace, two_processes());
  NotebookLauncherOptions options = two_processes();
  options.use_port = "4711";
  const auto named = plan_notebook_job(kPlace, options);

  ASSERT_TRUE(usual && named);
  EXPECT_EQ(usual->store.port, 29500);
  EXPECT_FALSE(usual->store.exact_port);
  EXPECT_EQ(named->store.port, 4711);
  EXPECT_TRUE(named->store.exact_port);
}

TEST(LaunchJob, OptionsGiveTheirPrecisionAndVariables) {
  NotebookLauncherOptions options = two_processes();
  options.mixed_precision = "bf16";
  options.env = {{"http_proxy", "gpu-01:8080"}, {"NPROC", "7"}};

  EXPECT_EQ(
      variables_of(options),
      (EnvMap{
          {"ACCELERATE_MIXED_PRECISION", "bf16"}, {"NPROC", "7"}, {"http_proxy", "gpu-01:8080"}}));
  EXPECT_EQ(plan_notebook_job(kPlace, options)->env.at("NPROC"), "7");
  EXPECT_EQ(plan_notebook_job(kPlace, options)->env.at("NODE_RANK"), "0");
}

TEST(LaunchJob, NotebookOfSeveralNodesNumbersItsRanks) {
  NotebookLauncherOptions options = two_processes();
  options.num_nodes = 3;
  options.node_rank = 2;
  options.master_addr = "10.0.0.1";
  options.mixed_precision = "bf16";

  const auto spec = plan_notebook_job(kPlace, options);

  ASSERT_TRUE(spec);
  EXPECT_EQ(spec->workers[1].global_rank, 5);
  EXPECT_EQ(spec->identity.world_size, 6);
  EXPECT_EQ(spec->identity.master_addr, "10.0.0.1");
  EXPECT_FALSE(spec->store.enabled);
  EXPECT_FALSE(spec->identity.use_agent_store);
  EXPECT_EQ(spec->env.at("NODE_RANK"), "2");
  EXPECT_EQ(spec->env.at("ACCELERATE_MIXED_PRECISION"), "bf16");
}

TEST(LaunchJob, VariablesOfTheOptionsComeLast) {
  NotebookLauncherOptions options = two_processes();
  options.env = {{"HOME", "/elsewhere"}, {"NPROC", "9"}};

  const auto spec = plan_notebook_job(kPlace, options);

  ASSERT_TRUE(spec);
  EXPECT_EQ(spec->env.at("HOME"), "/elsewhere");
  EXPECT_EQ(spec->env.at("NPROC"), "9");
}

TEST(LaunchJob, AnEndpointStandsForAddressAndPort) {
  NotebookLauncherOptions options = two_processes();
  options.num_nodes = 2;
  options.rdzv_endpoint = "[fd00::1]:4711";

  const auto several = plan_notebook_job(kPlace, options);
  options.num_nodes = 1;
  const auto one = plan_notebook_job(kPlace, options);

  ASSERT_TRUE(several && one);
  EXPECT_EQ(several->identity.master_addr, "fd00::1");
  EXPECT_EQ(several->identity.master_port, 4711);
  EXPECT_EQ(one->store.port, 4711);
  EXPECT_TRUE(one->store.exact_port);
}

TEST(LaunchJob, OneNodeMeetsNobodyByAnyBackend) {
  for (const char* backend : {"c10d", "etcd", "etcd-v2"}) {
    NotebookLauncherOptions options = two_processes();
    options.rdzv_backend = backend;
    options.rdzv_endpoint = "gpu-01";

    const auto spec = plan_notebook_job(kPlace, options);

    ASSERT_TRUE(spec) << backend;
    EXPECT_EQ(spec->store.port, 29500);
    options.rdzv_endpoint = "gpu-01:4711";
    EXPECT_EQ(plan_notebook_job(kPlace, options)->store.port, 4711) << backend;
  }
}

TEST(LaunchJob, NodesOfC10dMeetAtTheirEndpointWithTheirRanks) {
  LaunchPlace place = kPlace;
  place.is_own_host = [](const std::string& host) { return host == "10.0.0.1"; };
  NotebookLauncherOptions options = two_processes();
  options.rdzv_backend = "c10d";
  options.num_nodes = 2;
  options.rdzv_endpoint = "10.0.0.1:4711";

  const auto first = plan_notebook_job(place, options);
  options.node_rank = 1;
  options.rdzv_endpoint = "gpu-01";
  const auto second = plan_notebook_job(place, options);
  options.rdzv_endpoint = "[fd00::1]";
  const auto third = plan_notebook_job(place, options);
  options.node_rank = 0;
  const auto misplaced = plan_notebook_job(place, options);

  ASSERT_TRUE(first && second && third);
  EXPECT_EQ(first->identity.master_addr, "10.0.0.1");
  EXPECT_EQ(first->identity.master_port, 4711);
  EXPECT_EQ(second->workers[0].global_rank, 2);
  EXPECT_EQ(second->identity.world_size, 4);
  EXPECT_EQ(second->identity.master_addr, "gpu-01");
  EXPECT_EQ(second->identity.master_port, 29400);
  EXPECT_EQ(third->identity.master_addr, "fd00::1");
  ASSERT_FALSE(misplaced);
  EXPECT_THAT(misplaced.error().message(), HasSubstr("node_rank is 0, but fd00::1"));
}

TEST(LaunchJob, RefusesByTheOptionsName) {
  const auto with = [](auto change) {
    NotebookLauncherOptions options = two_processes();
    change(options);
    return refusal(options);
  };
  EXPECT_THAT(refusal({}), HasSubstr("num_processes is not given"));
  EXPECT_THAT(with([](auto& o) { o.num_processes = 0; }), HasSubstr("num_processes is 0"));
  EXPECT_THAT(with([](auto& o) { o.mixed_precision = "fp32"; }), HasSubstr("'fp32'"));
  EXPECT_THAT(with([](auto& o) { o.use_port = "http"; }), HasSubstr("'http'"));
  EXPECT_THAT(with([](auto& o) { o.use_port = "70000"; }), HasSubstr("70000"));
  EXPECT_THAT(with([](auto& o) { o.rdzv_backend = "zeus"; }), HasSubstr("rdzv_backend is 'zeus'"));
  EXPECT_THAT(with([](auto& o) { o.rdzv_backend = "etcd", o.num_nodes = 2; }),
              HasSubstr("rdzv_backend is 'etcd' with num_nodes 2"));
  for (const char* endpoint : {"gpu-01", ":29500", "[fd00::1]"}) {
    EXPECT_THAT(with([&](auto& o) { o.rdzv_endpoint = endpoint; }), HasSubstr("not HOST:PORT"));
  }
  EXPECT_THAT(with([](auto& o) { o.rdzv_endpoint = "gpu-01:http"; }), HasSubstr("'http'"));
  EXPECT_THAT(with([](auto& o) { o.node_rank = 1; }), HasSubstr("node_rank is 1"));
  EXPECT_THAT(with([](auto& o) { o.max_restarts = -1; }), HasSubstr("max_restarts is -1"));
  EXPECT_THAT(with([](auto& o) { o.num_nodes = 2, o.max_restarts = 1; }),
              HasSubstr("restart together"));
  EXPECT_THAT(with([](auto& o) { o.num_nodes = 2, o.use_port = "0"; }), HasSubstr("use_port"));
  EXPECT_THAT(with([](auto& o) { o.env = {{"A=B", "c"}}; }), HasSubstr("env has 'A=B'"));
  EXPECT_THAT(with([](auto& o) { o.env = {{"", "c"}}; }), HasSubstr("env has ''"));
  EXPECT_THAT(with([](auto& o) { o.env["A"] = std::string("b\0c", 3); }),
              HasSubstr("a value of A with a NUL byte"));
}

JobOutcome failed_with(WorkerExit exit) {
  exit.global_rank = 1;
  return {.exit_code = 1, .reason = "failed", .first_failure = exit, .exits = {exit}};
}

TEST(LaunchJob, ErrorNamesRankAndWhatWasThrown) {
  WorkerExit exit = {.cause = ExitCause::kNonZero, .exit_code = 1};
  exit.error_file = R"({"message": {"message": "std::logic_error: no", "extraInfo": {}}})";

  const LaunchError error = launch_error(failed_with(exit), 2);

  EXPECT_EQ(error.message(), "rank 1 of 2 failed: std::logic_error: no");
  EXPECT_EQ(error.worker_message(), "std::logic_error: no");
  EXPECT_EQ(error.rank(), 1);
  EXPECT_EQ(error.exit_code(), 1);
  EXPECT_EQ(error.signal(), 0);
}

TEST(LaunchJob, ErrorOfSeveralLinesIsToldByItsFirstAndKeptWhole) {
  WorkerExit exit = {.cause = ExitCause::kNonZero, .exit_code = 1};
  exit.error_file =
      R"({"message": {"message": "c10::Error: shapes differ\nException raised from f at g.cpp:1\nframe #0: h"}})";

  const LaunchError error = launch_error(failed_with(exit), 2);

  EXPECT_EQ(error.message(), "rank 1 of 2 failed: c10::Error: shapes differ");
  EXPECT_EQ(error.worker_message(),
            "c10::Error: shapes differ\nException raised from f at g.cpp:1\nframe #0: h");
}

TEST(LaunchJob, ErrorOfALaunchThatWasStoppedHasNoRank) {
  const LaunchError error = launch_error({.exit_code = 130, .reason = "stopped by SIGINT"}, 4);

  EXPECT_EQ(error.rank(), -1);
  EXPECT_THAT(error.message(), HasSubstr("4 processes"));
  EXPECT_THAT(error.message(), HasSubstr("stopped by SIGINT"));
}

}  // namespace
}  // namespace accel::launch::launch_job_test
