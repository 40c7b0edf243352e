#include "launcher/plan/launch_plan.h"

#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "launcher/plan/dry_run.h"
#include "tests/support/launch_plan_fixture.h"

namespace accel::launcher::launch_plan_test {
namespace {

using supervisor::WorkerSpec;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Key;
using ::testing::Not;
using ::testing::Pair;

using LaunchPlanTest = test::LaunchLineFixture;

TEST_F(LaunchPlanTest, OneProcessIsTheSimpleMode) {
  const LaunchPlan result = plan({"--cpu", program_, "--", "--epochs", "3"});

  EXPECT_EQ(result.spec.env_mode, EnvMode::kSimple);
  EXPECT_FALSE(result.spec.store.enabled);
  ASSERT_EQ(result.spec.workers.size(), 1u);
  EXPECT_THAT(result.spec.workers[0].argv, ElementsAre(program_, "--epochs", "3"));
  EXPECT_EQ(result.spec.env.at("ACCELERATE_USE_CPU"), "True");
  EXPECT_EQ(result.spec.env.at("ACCELERATE_MIXED_PRECISION"), "no");
  EXPECT_EQ(result.spec.env.at("ACCELERATE_DYNAMO_BACKEND"), "NO");
  EXPECT_EQ(result.spec.job_id, "digits-1-abc");
}

TEST_F(LaunchPlanTest, CpuWithTwoProcessesStartsTwo) {
  const LaunchPlan result = plan({"--cpu", "--num_processes", "2", program_});

  ASSERT_EQ(result.spec.workers.size(), 2u);
  EXPECT_EQ(result.spec.env_mode, EnvMode::kDistributed);
  EXPECT_EQ(result.spec.identity.world_size, 2);
  EXPECT_EQ(result.spec.workers[1].global_rank, 1);
  EXPECT_TRUE(result.spec.store.enabled);
  EXPECT_EQ(result.spec.env.at("TORCH_NCCL_ASYNC_ERROR_HANDLING"), "1");
}

TEST_F(LaunchPlanTest, WithoutAnyNumberThereIsOneWorkerForEachGpu) {
  num_gpus_ = 3;
  const LaunchPlan on_gpus = plan({program_});
  const LaunchPlan on_cpu = plan({"--cpu", program_});

  EXPECT_EQ(on_gpus.spec.workers.size(), 3u);
  EXPECT_THAT(on_gpus.spec.env, Not(Contains(Key("ACCELERATE_USE_CPU"))));
  EXPECT_EQ(on_cpu.spec.workers.size(), 1u);
  EXPECT_THAT(on_cpu.notices, Contains(HasSubstr("--num_processes is 1")));
}

TEST_F(LaunchPlanTest, ThreadsAreTheCoresOfTheShare) {
  const LaunchPlan result = plan({"--num_processes", "3", program_});

  for (const WorkerSpec& worker : result.spec.workers) {
    EXPECT_EQ(worker.env.at("OMP_NUM_THREADS"), "2");
    EXPECT_EQ(worker.env.at("MKL_NUM_THREADS"), "2");
    EXPECT_THAT(worker.cpus, IsEmpty());
  }
}

TEST_F(LaunchPlanTest, ThreadsThatTheUserSetStay) {
  host_.environment["OMP_NUM_THREADS"] = "5";
  const LaunchPlan kept = plan({"--num_processes", "2", program_});
  const LaunchPlan given =
      plan({"--num_processes", "2", "--num_cpu_threads_per_process", "7", program_});

  EXPECT_EQ(kept.spec.env.at("OMP_NUM_THREADS"), "5");
  EXPECT_THAT(kept.spec.workers[0].env, Not(Contains(Key("OMP_NUM_THREADS"))));
  EXPECT_EQ(given.spec.workers[0].env.at("OMP_NUM_THREADS"), "7");
}

TEST_F(LaunchPlanTest, AffinityGivesEveryWorkerCoresOfItsOwn) {
  machine_ = "package:2 [numa] core:2 pu:2";
  const LaunchPlan result = plan({"--num_processes", "2", "--enable_cpu_affinity", program_});

  EXPECT_THAT(result.spec.workers[0].cpus, ElementsAre(0, 1, 2, 3));
  EXPECT_THAT(result.spec.workers[1].cpus, ElementsAre(4, 5, 6, 7));
  EXPECT_EQ(result.spec.workers[1].env.at("OMP_NUM_THREADS"), "2");
  EXPECT_EQ(result.spec.env.at("ACCELERATE_CPU_AFFINITY"), "1");
}

TEST_F(LaunchPlanTest, EightWorkersOnOneCoreAreWarnedAbout) {
  machine_ = "package:1 [numa] core:1 pu:1";
  const LaunchPlan result = plan({"--num_processes", "8", program_});

  EXPECT_THAT(result.notices, Contains(HasSubstr("8 workers share 1 core")));
}

TEST_F(LaunchPlanTest, AQuotaOfTheCgroupBoundsTheThreadsOfAllWorkers) {
  host_.cpu_quota = [] { return CpuQuota{.file = "/cg/cpu.max", .cpus = 5.5}; };
  const LaunchPlan some = plan({"--num_processes", "2", "--enable_cpu_affinity", program_});
  const LaunchPlan many = plan({"--num_processes", "6", program_});

  EXPECT_EQ(some.spec.workers[1].env.at("OMP_NUM_THREADS"), "2");
  EXPECT_THAT(some.spec.workers[1].cpus, ElementsAre(4, 5, 6, 7));  // a quota is no place
  EXPECT_THAT(some.notices, Not(Contains(HasSubstr("share"))));
  EXPECT_EQ(many.spec.workers[5].env.at("OMP_NUM_THREADS"), "1");
  EXPECT_THAT(many.notices,
              Contains(HasSubstr("6 workers share 5.5 CPUs, the quota of /cg/cpu.max")));
}

TEST_F(LaunchPlanTest, AQuotaOfMoreThanTheCoresChangesNothing) {
  host_.cpu_quota = [] { return CpuQuota{.file = "/cg/cpu.max", .cpus = 16}; };

  EXPECT_EQ(plan({"--num_processes", "2", program_}).spec.workers[0].env.at("OMP_NUM_THREADS"),
            "4");
}

TEST_F(LaunchPlanTest, AMachineThatCannotBeReadOnlyCostsTheThreads) {
  host_.topology = [](Caches) { return Error(ErrorCode::kTopology, "no hwloc"); };

  EXPECT_EQ(plan({"--num_processes", "2", program_}).spec.workers[0].env.at("OMP_NUM_THREADS"),
            "1");
  EXPECT_EQ(refused({"--num_processes", "2", "--enable_cpu_affinity", program_}).code(),
            ErrorCode::kTopology);
}

TEST_F(LaunchPlanTest, PythonScriptsRunUnbuffered) {
  const LaunchPlan script = plan({script_, "--lr", "1"});
  const LaunchPlan module = plan({"-m", "pkg.train", "x"});

  EXPECT_THAT(script.spec.workers[0].argv, ElementsAre(python_, "-u", script_, "--lr", "1"));
  EXPECT_EQ(script.spec.env.at("PYTHONUNBUFFERED"), "1");
  EXPECT_THAT(module.spec.workers[0].argv, ElementsAre(python_, "-u", "-m", "pkg.train", "x"));
  EXPECT_EQ(module.spec.job_id, "train-1-abc");
}

TEST_F(LaunchPlanTest, PythonIsTakenFromTheEnvironmentThatIsActive) {
  const std::string conda = folder_.write("conda/bin/python", "#!/bin/sh\n", true);
  host_.environment["CONDA_PREFIX"] = folder_.file("conda");
  EXPECT_EQ(plan({script_}).spec.workers[0].argv[0], conda);

  const std::string venv = folder_.write("venv/bin/python", "#!/bin/sh\n", true);
  host_.environment["VIRTUAL_ENV"] = folder_.file("venv");
  EXPECT_EQ(plan({script_}).spec.workers[0].argv[0], venv);

  host_.environment["PYTHON_EXEC"] = python_;
  EXPECT_EQ(plan({script_}).spec.workers[0].argv[0], python_);
}

TEST_F(LaunchPlanTest, ATakenPortOfOneMachineIsReplacedWithANoticeThatNamesItsHolder) {  // CLI27
  host_.port_fault = [](std::uint16_t port) -> std::optional<Error> {
    if (port != 1234) return std::nullopt;
    return Error(ErrorCode::kPortInUse, "it is held by nginx (pid 7)");
  };
  const std::string named = folder_.write(
      "c.yaml",
      "distributed_type: MULTI_CPU\nuse_cpu: true\nnum_processes: 2\nmain_process_port: 1234\n");
  const auto plan_with = [&](Words words) {
    words.insert(words.begin(), {"--num_processes", "2"});
    words.push_back(program_);
    return plan(words);
  };

  for (const Words& words :
       {Words{"--main_process_port", "1234"}, Words{"--config_file", named}, Words{}}) {
    if (words.empty()) host_.environment["PET_MASTER_PORT"] = "1234";
    const LaunchPlan moved = plan_with(words);
    EXPECT_EQ(moved.spec.store.port, 0);
    EXPECT_FALSE(moved.spec.store.exact_port);
    EXPECT_THAT(moved.notices,
                Contains("the store takes a free port: it is held by nginx (pid 7) "
                         "(--main_process_port 0 asks for a free one, without this notice)"));
  }
  host_.environment.erase("PET_MASTER_PORT");
  EXPECT_EQ(plan_with({"--main_process_port", "1235"}).spec.store.port, 1235);
  EXPECT_EQ(plan_with({"--main_process_port", "1235"}).notices, plan_with({}).notices);
  EXPECT_EQ(plan_with({}).spec.store.port, 29500);
  EXPECT_EQ(plan_with({"--main_process_port", "0"}).spec.store.port, 0);
}

TEST_F(LaunchPlanTest, ThePortThatSeveralMachinesWereToldStays) {
  host_.port_fault = [](std::uint16_t) { return Error(ErrorCode::kPortInUse, "held"); };

  const LaunchPlan result = plan({"--num_machines",
                                  "2",
                                  "--num_processes",
                                  "2",
                                  "--main_process_ip",
                                  "127.0.0.1",
                                  "--main_process_port",
                                  "1234",
                                  program_});

  EXPECT_TRUE(result.spec.store.exact_port);
  EXPECT_EQ(result.spec.store.port, 1234);
}

TEST_F(LaunchPlanTest, HangsAreLookedForOnlyWhenAsked) {
  using supervisor::HangMode;
  EXPECT_EQ(plan({program_}).spec.hang.mode, HangMode::kOff);
  EXPECT_EQ(plan({"--hang_timeout", "off", program_}).spec.hang.mode, HangMode::kOff);
  EXPECT_EQ(plan({"--hang_timeout", "auto", program_}).spec.hang.mode, HangMode::kAuto);
  const auto fixed = plan({"--hang_timeout", "10m", program_}).spec.hang;
  EXPECT_EQ(fixed.mode, HangMode::kFixed);
  EXPECT_EQ(fixed.timeout.count(), 600'000);
}

TEST_F(LaunchPlanTest, ChecksAreTakenInTheirOrderAndRunInAShell) {
  const auto made = plan({"--preflight",
                          "disk=test -w /scratch && df -h",
                          "--preflight=link=ping -c 1 a=b",
                          "--preflight_seconds",
                          "1m",
                          "--dry_run",
                          program_});

  ASSERT_THAT(made.spec.preflight, ::testing::SizeIs(2));
  EXPECT_EQ(made.spec.preflight[0].name, "disk");
  EXPECT_THAT(made.spec.preflight[0].argv,
              ElementsAre("/bin/sh", "-c", "test -w /scratch && df -h"));
  EXPECT_EQ(made.spec.preflight[1].argv.back(), "ping -c 1 a=b");
  EXPECT_EQ(made.spec.preflight[1].limit.count(), 60'000);
  EXPECT_THAT(render_dry_run(made), HasSubstr("link: ping -c 1 a=b (60 s at most)"));
}

TEST_F(LaunchPlanTest, FencingIsSoftUnlessAskedAndALeaseNeedsHardFencing) {
  const auto with = [&](Words more) {
    Words words = {"--nnodes", "2", "--rdzv_endpoint", "127.0.0.1:1", "--rdzv_insecure"};
    words.insert(words.end(), {"--rdzv_token_file", "token"});
    words.insert(words.end(), more.begin(), more.end());
    words.push_back(program_);
    return words;
  };
  EXPECT_FALSE(nodes_of(plan(with({})))->hard_fencing);
  EXPECT_FALSE(nodes_of(plan(with({"--fencing", "soft"})))->hard_fencing);
  const auto hard = nodes_of(plan(with({"--fencing", "hard"})));
  EXPECT_TRUE(hard->hard_fencing);
  EXPECT_EQ(hard->lease.count(), 10'000);
  const auto given = nodes_of(plan(with({"--fencing", "hard", "--lease", "5"})));
  EXPECT_EQ(given->lease.count(), 5'000);
  const auto carried =
      elastic_request_from_json(to_json(*given, supervisor::JobSpec(plan(with({})).spec)));
  ASSERT_TRUE(carried) << carried.error().what();
  EXPECT_TRUE(carried->settings.hard_fencing);
  EXPECT_EQ(carried->settings.lease.count(), 5'000);

  EXPECT_THAT(refused(with({"--lease", "5"})).message(), HasSubstr("for hard fencing"));
  EXPECT_THAT(refused(with({"--fencing", "hard", "--lease", "1"})).message(),
              HasSubstr("expected 2.5 s to one day"));
  EXPECT_EQ(refused({"--fencing", "hard", program_}).code(), ErrorCode::kUsage);
}

TEST_F(LaunchPlanTest, AnAgentNeedsNoAddressAndTakesNoFlagOfWhatItDecidesItself) {
  const auto one = plan({"--agent", "--num_processes", "2", program_});
  ASSERT_TRUE(nodes_of(one));
  EXPECT_EQ(nodes_of(one)->meeting, Meeting::kAgent);
  EXPECT_EQ(nodes_of(one)->max_nodes, 1);
  EXPECT_EQ(nodes_of(one)->job, "");
  EXPECT_FALSE(one.spec.console.use_pty);
  const auto many = nodes_of(plan({"--agent", "--nnodes", "2:4", "--rdzv_id", "mine", program_}));
  EXPECT_EQ(many->min_nodes, 2);
  EXPECT_EQ(many->max_nodes, 4);
  EXPECT_EQ(many->job, "mine");

  EXPECT_THAT(refused({"--agent", "--log_dir", "logs", program_}).message(),
              HasSubstr("--log_dir cannot be used together with --agent"));
  EXPECT_THAT(refused({"--agent", "--rdzv_endpoint", "a:1", program_}).message(),
              HasSubstr("--rdzv_endpoint cannot"));
  EXPECT_THAT(refused({"--agent", "--fencing", "hard", program_}).message(),
              HasSubstr("--fencing is for several nodes"));
}

TEST_F(LaunchPlanTest, TimesAreRead) {
  const LaunchPlan result = plan({"--stop_grace",
                                  "500ms",
                                  "--linger",
                                  "2m",
                                  "--max_restarts",
                                  "3",
                                  "--monitor_interval",
                                  "0.1",
                                  program_});

  EXPECT_EQ(result.spec.stop.grace.count(), 500);
  EXPECT_EQ(result.spec.stop.linger.count(), 120'000);
  EXPECT_EQ(result.spec.restart.max_restarts, 3);
  EXPECT_EQ(result.spec.identity.max_restarts, 3);
}

TEST_F(LaunchPlanTest, InsideAWorkerOfAnotherJobItsIdentityIsDropped) {
  host_.environment.insert({{"ACCEL_JOB_ID", "outer"}, {"RANK", "1"}, {"ACCEL_CHANNEL", "1:5:6"}});
  EXPECT_THAT(plan({"--cpu", program_}).spec.env, Not(Contains(Key("RANK"))));

  host_.environment.erase("ACCEL_JOB_ID");  // started by mpirun or by hand: the ranks are meant
  EXPECT_THAT(plan({"--cpu", program_}).spec.env, Contains(Pair("RANK", "1")));
}

TEST_F(LaunchPlanTest, HelpAndVersionNeedNoScript) {
  EXPECT_THAT(plan({"--help"}).answer.value(), HasSubstr("Usage: accel-launch"));
  EXPECT_THAT(plan({"--version"}).answer.value(), HasSubstr("accel "));
  host_.is_torchrun = true;
  const std::string help = plan({"--help"}).answer.value();
  EXPECT_THAT(help, HasSubstr("Usage: accel-torchrun [flags]"));
  EXPECT_THAT(help, HasSubstr("  accel-torchrun --standalone --nproc-per-node auto "));
  EXPECT_THAT(help, Not(HasSubstr("accel-launch --num_processes")));
}

TEST_F(LaunchPlanTest, HelpBesideAnyOtherFlagLeavesOutWhatIsNotChosen) {
  for (const char* other : {"--use_xpu", "--ipex", "--multi_gpu"}) {
    EXPECT_THAT(plan({other, "-h"}).answer.value(), Not(HasSubstr("--fsdp_version"))) << other;
  }
}

TEST_F(LaunchPlanTest, HelpBesideAFlagThatNobodyKnowsShowsEverything) {
  EXPECT_EQ(plan({"--no_such_flag", "-h"}).answer, plan({"-h"}).answer);
}

TEST_F(LaunchPlanTest, TheDryRunShowsRanksEnvironmentAndFiles) {
  const LaunchPlan result = plan({"--num_processes",
                                  "2",
                                  "--enable_cpu_affinity",
                                  "--log_dir",
                                  "/logs",
                                  "--mixed_precision",
                                  "bf16",
                                  "--dry_run",
                                  program_,
                                  "a b"});

  const std::string text = render_dry_run(result);

  EXPECT_TRUE(result.dry_run);
  EXPECT_THAT(text, HasSubstr("rank 1\n"));
  EXPECT_THAT(text, HasSubstr("cpus      0-3 (memory node 0)\n"));
  EXPECT_THAT(text, HasSubstr("'a b'\n"));
  EXPECT_THAT(text, HasSubstr("  ACCELERATE_MIXED_PRECISION=bf16\n"));
  EXPECT_THAT(text, HasSubstr("  RANK=0\n"));
  EXPECT_THAT(text, HasSubstr("127.0.0.1:29500, or any free port when it is taken\n"));
  EXPECT_THAT(text, HasSubstr("/logs/digits-1-abc/attempt_0/1\n"));
  EXPECT_THAT(text, Not(HasSubstr("PATH=")));
}

TEST_F(LaunchPlanTest, TheTokenOfAJobReachesNeitherWorkersNorTheDryRun) {
  host_.environment["ACCEL_JOB_TOKEN"] = "sesame-0123456789";

  const LaunchPlan result = plan({"--num_machines",
                                  "2",
                                  "--main_process_ip",
                                  "127.0.0.1",
                                  "--main_process_port",
                                  "29511",
                                  "--num_processes",
                                  "2",
                                  "--cpu",
                                  "--dry_run",
                                  program_});

  EXPECT_EQ(result.spec.env.count("ACCEL_JOB_TOKEN"), 0u);
  EXPECT_THAT(render_dry_run(result), Not(HasSubstr("sesame")));
}

}  // namespace
}  // namespace accel::launcher::launch_plan_test
