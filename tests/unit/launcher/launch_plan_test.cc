#include "launcher/launch_plan.h"

#include <cstdlib>
#include <filesystem>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "launcher/dry_run.h"
#include "tests/support/launch_plan_fixture.h"

namespace accel::launcher {
namespace {

using supervisor::Streams;
using supervisor::WorkerSpec;
using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Key;
using ::testing::Not;
using ::testing::Pair;

class LaunchPlanTest : public test::LaunchPlanFixture {
 protected:
  LaunchPlan plan(const Words& words) { return or_throw(resolve_launch(words, host_)); }

  Error refused(const Words& words) {
    Result<LaunchPlan> result = resolve_launch(words, host_);
    if (result) throw std::logic_error("the command line was accepted");
    return result.error();
  }
};

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
                Contains(HasSubstr("it is held by nginx (pid 7)): it takes a free")));
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

TEST_F(LaunchPlanTest, ErrorFilesHaveAPrivatePlaceWithoutALogFolder) {
  host_.private_base = "/run/user/7";

  EXPECT_EQ(plan({program_}).spec.log.error_dir,
            "/run/user/7/accel-" + plan({program_}).spec.job_id);
  EXPECT_EQ(plan({"--log_dir", folder_.file("logs"), program_}).spec.log.error_dir, "");
}

TEST_F(LaunchPlanTest, LogFlagsFollowTorchrun) {
  const LaunchPlan per_rank = plan({"--num_processes",
                                    "2",
                                    "--log_dir",
                                    folder_.file("logs"),
                                    "--tee",
                                    "0:3",
                                    "-r",
                                    "1:1",
                                    program_});
  const LaunchPlan dir_only =
      plan({"--num_processes", "2", "--log_dir", folder_.file("logs"), program_});
  const LaunchPlan no_dir = plan({"--num_processes", "2", "--tee", "3", program_});

  EXPECT_EQ(per_rank.spec.workers[0].tee, Streams::kAll);
  EXPECT_EQ(per_rank.spec.workers[1].tee, Streams::kNone);
  EXPECT_EQ(per_rank.spec.workers[1].redirect, Streams::kOut);
  EXPECT_EQ(dir_only.spec.workers[1].tee, Streams::kAll);
  EXPECT_EQ(no_dir.spec.log.dir, "/tmp/accel_logs-" + host_.job_suffix);  // of this launch alone
  host_.environment["TMPDIR"] = ".";  // workers may go elsewhere
  EXPECT_THAT(plan({"--num_processes", "2", "--tee", "3", program_}).spec.log.dir,
              ::testing::StartsWith(std::filesystem::current_path().string() + "/accel_logs-"));
}

TEST_F(LaunchPlanTest, TeedLinesAreNamedAsTorchrunDoes) {
  const auto log_of = [this](Words words) {
    words.insert(words.begin(), {"--num_processes", "2", "--log_dir", folder_.file("logs")});
    words.push_back(program_);
    return plan(words).spec.log;
  };
  EXPECT_EQ(log_of({"--tee", "3"}).prefix_template, "[${role_name}${local_rank}]:");
  EXPECT_FALSE(log_of({"--tee", "3"}).prefix);
  EXPECT_EQ(log_of({}).prefix_template, "");
  EXPECT_EQ(log_of({"--tee", "3", "--log_prefix"}).prefix_template, "");
  host_.environment["TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE"] = "<${rank}> ";
  EXPECT_EQ(log_of({"--tee", "1"}).prefix_template, "<${rank}> ");
  EXPECT_EQ(log_of({}).prefix_template, "");
}

TEST_F(LaunchPlanTest, RotationIsForStreamsThatGoToFiles) {
  const std::string logs = folder_.file("logs");
  const auto rotation_of = [this](const std::vector<std::string>& arguments) {
    return plan(arguments).spec.log.rotation;
  };

  EXPECT_EQ(rotation_of({"--log_dir", logs, program_}).bytes, 0U);
  EXPECT_EQ(rotation_of({"--log_dir", logs, "--log_rotate_bytes", "64K", program_}).bytes, 65'536U);
  EXPECT_EQ(rotation_of({"--log_dir", logs, "--log_rotate_bytes", "1G", program_}).keep, 8);
  EXPECT_EQ(rotation_of({"-r", "3", "--log_rotate_bytes", "1G", "--log_keep", "2", program_}).keep,
            2);
  EXPECT_EQ(rotation_of({"--agent", "--log_rotate_bytes", "1G", program_}).bytes, 1U << 30);

  EXPECT_THAT(refused({"--log_rotate_bytes", "1M", program_}).render("accel"),
              AllOf(HasSubstr("no stream goes to one"), HasSubstr("--log_dir")));
  EXPECT_THAT(refused({"--log_dir", logs, "--log_keep", "2", program_}).remedy(),
              HasSubstr("--log_rotate_bytes"));
  for (const char* size : {"4095", "many", "-1", "1.5G", "99999999999G"}) {
    EXPECT_THAT(refused({"--log_dir", logs, "--log_rotate_bytes", size, program_}).message(),
                HasSubstr("expected 0 or 4096 bytes and more"));
  }
  EXPECT_THAT(refused({"--log_dir", logs, "--log_rotate_bytes", "1M", "--log_keep", "0", program_})
                  .message(),
              HasSubstr("--log_keep"));
}

TEST_F(LaunchPlanTest, OverflowAndMergedStreamsReachTheWorkers) {
  const auto log_of = [this](const std::vector<std::string>& arguments) {
    return plan(arguments).spec.log;
  };

  EXPECT_EQ(log_of({program_}).overflow, supervisor::Overflow::kBlock);
  EXPECT_EQ(log_of({"--log_overflow", "drop", program_}).overflow, supervisor::Overflow::kDrop);
  EXPECT_EQ(log_of({"--log_overflow", "sample", program_}).overflow, supervisor::Overflow::kSample);
  EXPECT_FALSE(log_of({program_}).merge_stderr);
  EXPECT_TRUE(log_of({"--log_merge_stderr", "-r", "1", program_}).merge_stderr);

  EXPECT_THAT(refused({"--log_overflow", "lose", program_}).message(), HasSubstr("block"));
  EXPECT_THAT(refused({"--log_merge_stderr", "--tee", "2", program_}).message(),
              HasSubstr("leaves no stderr"));
}

TEST_F(LaunchPlanTest, TheTerminalGoesToASingleWorker) {
  host_.stdin_is_terminal = host_.stdout_is_terminal = true;

  EXPECT_TRUE(plan({"--cpu", program_}).spec.console.foreground);
  EXPECT_TRUE(plan({"--num_processes", "2", program_}).spec.console.use_pty);
  EXPECT_FALSE(plan({"--num_processes", "2", "--no_pty", program_}).spec.console.use_pty);
  EXPECT_FALSE(plan({"--cpu", "--no_pty", program_}).spec.console.foreground);
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
  EXPECT_FALSE(plan(with({})).elastic->hard_fencing);
  EXPECT_FALSE(plan(with({"--fencing", "soft"})).elastic->hard_fencing);
  const auto hard = plan(with({"--fencing", "hard"})).elastic;
  EXPECT_TRUE(hard->hard_fencing);
  EXPECT_EQ(hard->lease.count(), 10'000);
  const auto given = plan(with({"--fencing", "hard", "--lease", "5"})).elastic;
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
  ASSERT_TRUE(one.elastic);
  EXPECT_EQ(one.elastic->meeting, Meeting::kAgent);
  EXPECT_EQ(one.elastic->max_nodes, 1);
  EXPECT_EQ(one.elastic->job, "");
  EXPECT_FALSE(one.spec.console.use_pty);
  const auto many = plan({"--agent", "--nnodes", "2:4", "--rdzv_id", "mine", program_}).elastic;
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

TEST_F(LaunchPlanTest, FlagBeatsFileBeatsDefault) {
  const std::string config = folder_.write("c.yaml",
                                           "distributed_type: 'NO'\n"
                                           "num_processes: 3\n"
                                           "mixed_precision: bf16\n"
                                           "enable_cpu_affinity: yes\n"
                                           "use_cpu: true\n"
                                           "debug: true\n"
                                           "main_process_port: 4000\n"
                                           "dynamo_config:\n"
                                           "  dynamo_backend: INDUCTOR\n"
                                           "  use_dynamic: on\n");

  const LaunchPlan from_file = plan({"--config_file", config, program_});
  const LaunchPlan from_flags = plan({"--config_file",
                                      config,
                                      "--num_processes",
                                      "2",
                                      "--mixed_precision",
                                      "no",
                                      "--dynamo_backend",
                                      "eager",
                                      program_});

  EXPECT_EQ(from_file.spec.workers.size(), 3u);
  EXPECT_EQ(from_file.spec.env.at("ACCELERATE_MIXED_PRECISION"), "bf16");
  EXPECT_EQ(from_file.spec.env.at("ACCELERATE_CPU_AFFINITY"), "1");
  EXPECT_EQ(from_file.spec.env.at("ACCELERATE_DEBUG_MODE"), "true");
  EXPECT_EQ(from_file.spec.env.at("ACCELERATE_USE_CPU"), "True");
  EXPECT_EQ(from_file.spec.env.at("ACCELERATE_DYNAMO_BACKEND"), "INDUCTOR");
  EXPECT_EQ(from_file.spec.env.at("ACCELERATE_DYNAMO_USE_DYNAMIC"), "True");
  EXPECT_EQ(from_file.spec.store.port, 4000);
  EXPECT_EQ(from_flags.spec.workers.size(), 2u);
  EXPECT_EQ(from_flags.spec.env.at("ACCELERATE_MIXED_PRECISION"), "no");
  EXPECT_EQ(from_flags.spec.env.at("ACCELERATE_DYNAMO_BACKEND"), "EAGER");
  EXPECT_EQ(from_flags.spec.env.at("ACCELERATE_DEBUG_MODE"), "true");
}

TEST_F(LaunchPlanTest, TheDefaultFileIsReadUnlessCpuIsGiven) {
  folder_.write("home/.cache/huggingface/accelerate/default_config.yaml",
                "distributed_type: 'NO'\nnum_processes: 4\n");

  EXPECT_EQ(plan({program_}).spec.workers.size(), 4u);
  EXPECT_EQ(plan({"--cpu", program_}).spec.workers.size(), 1u);

  folder_.write("hf/accelerate/default_config.yaml", "distributed_type: 'NO'\nnum_processes: 2\n");
  host_.environment["HF_HOME"] = folder_.file("hf");
  EXPECT_EQ(plan({program_}).spec.workers.size(), 2u);
}

TEST_F(LaunchPlanTest, TheGpusOfAConfigurationMustBeThere) {
  const std::string config =
      folder_.write("c.yaml", "distributed_type: MULTI_GPU\nnum_processes: 2\n");
  EXPECT_EQ(refused({"--config_file", config, program_}).code(), ErrorCode::kUnsupported);

  num_gpus_ = 2;
  const LaunchPlan on_gpus = plan({"--config_file", config, "--gpu_ids", "0,1", program_});
  EXPECT_EQ(on_gpus.spec.env.at("CUDA_VISIBLE_DEVICES"), "0,1");
  EXPECT_EQ(on_gpus.spec.env.count("ACCELERATE_USE_CPU"), 0u);
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

TEST_F(LaunchPlanTest, TheFixturesOfThePeerLaunch) {
  const char* folder = std::getenv("ACCEL_SOURCE_DIR");
  ASSERT_NE(folder, nullptr) << "ctest sets ACCEL_SOURCE_DIR";
  for (const char* name :
       {"0_11_0.yaml", "0_12_0.yaml", "latest.yaml", "validate_launch_cmd.yaml"}) {
    const std::string path = std::string(folder) + "/tests/unit/launcher/configs/" + name;
    const LaunchPlan result = plan({"--config_file", path, program_});
    EXPECT_EQ(result.spec.workers.size(), 1u) << name;
    EXPECT_THAT(result.notices, IsEmpty()) << name;
  }
}

// The options of libaccel's sharding, as its workers find them.
class FsdpFileTest : public LaunchPlanTest {
 protected:
  std::string file(const std::string& fsdp_keys, const std::string& use_cpu = "true") {
    return folder_.write("fsdp.yaml",
                         "distributed_type: FSDP\nnum_processes: 2\nuse_cpu: " + use_cpu +
                             "\nfsdp_config:\n" + fsdp_keys);
  }
};

TEST_F(FsdpFileTest, TheExamplesLaunchWithoutANotice) {
  const std::string folder = std::getenv("ACCEL_SOURCE_DIR");
  const LaunchPlan one = plan({"--config_file", folder + "/configs/fsdp1.yaml", program_});
  const LaunchPlan two = plan({"--config_file", folder + "/configs/fsdp2.yaml", program_});

  EXPECT_THAT(one.notices, IsEmpty());
  EXPECT_THAT(two.notices, IsEmpty());
  EXPECT_THAT(one.spec.env,
              AllOf(Contains(Pair("ACCELERATE_USE_FSDP", "true")),
                    Contains(Pair("FSDP_VERSION", "1")),
                    Contains(Pair("FSDP_SHARDING_STRATEGY", "FULL_SHARD")),
                    Contains(Pair("FSDP_AUTO_WRAP_POLICY", "TRANSFORMER_BASED_WRAP")),
                    Contains(Pair("FSDP_TRANSFORMER_CLS_TO_WRAP", "GptBlock")),
                    Contains(Pair("FSDP_OFFLOAD_PARAMS", "false")),
                    Not(Contains(Key("FSDP_IGNORED_MODULES")))));
  EXPECT_THAT(two.spec.env,
              AllOf(Contains(Pair("FSDP_VERSION", "2")),
                    Contains(Pair("FSDP_RESHARD_AFTER_FORWARD", "true")),
                    Contains(Pair("FSDP_MIN_NUM_PARAMS", "100000")),
                    Contains(Pair("ACCELERATE_MIXED_PRECISION", "bf16"))));
}

TEST_F(FsdpFileTest, PrefixesAreOptionalAndAStrategyMayStandUnderTheKeyOfVersion2) {
  const LaunchPlan result = plan({"--config_file",
                                  file("  reshard_after_forward: shard_grad_op\n"
                                       "  fsdp_sync_module_states: no\n"
                                       "  cpu_ram_efficient_loading: no\n"),
                                  program_});
  EXPECT_THAT(result.spec.env,
              AllOf(Contains(Pair("FSDP_SHARDING_STRATEGY", "SHARD_GRAD_OP")),
                    Contains(Pair("FSDP_SYNC_MODULE_STATES", "false")),
                    Contains(Pair("FSDP_RESHARD_AFTER_FORWARD", "shard_grad_op"))));
  const LaunchPlan other =
      plan({"--config_file", file("  fsdp_reshard_after_forward: no\n"), program_});
  EXPECT_THAT(other.spec.env, Contains(Pair("FSDP_RESHARD_AFTER_FORWARD", "false")));
}

TEST_F(FsdpFileTest, WrongValuesAreNamedWithTheirLinesAllAtOnce) {
  const Error error = refused({"--config_file",
                               file("  fsdp_sharding_strategy: EVERYTHING\n"
                                    "  fsdp_min_num_params: many\n"
                                    "  fsdp_version: 3\n"),
                               program_});
  EXPECT_EQ(error.code(), ErrorCode::kConfigInvalidValue);
  EXPECT_THAT(error.render(),
              AllOf(HasSubstr("fsdp.yaml:5: fsdp_config.sharding_strategy is 'EVERYTHING'"),
                    HasSubstr("fsdp.yaml:6: fsdp_config.min_num_params is 'many'"),
                    HasSubstr("fsdp.yaml:7: fsdp_config.version is '3', expected one of 1, 2")));
}

TEST_F(FsdpFileTest, AnUnknownKeyIsNoticed) {
  const LaunchPlan result = plan({"--config_file", file("  fsdp_shards: 2\n"), program_});
  EXPECT_THAT(result.notices, Contains(HasSubstr("fsdp.yaml:5: fsdp_config has no key shards")));
}

TEST_F(LaunchPlanTest, AGivenFlagBeatsTheFixtureAndTheRestHolds) {
  const std::string path = std::string(std::getenv("ACCEL_SOURCE_DIR")) +
                           "/tests/unit/launcher/configs/validate_launch_cmd.yaml";

  const LaunchPlan result = plan({"--num-processes", "2", "--config-file", path, program_});

  EXPECT_EQ(result.spec.workers.size(), 2u);  // the file says 1
  EXPECT_TRUE(result.debug);
}

// ---- What is refused

struct HostileFlag {
  const char* name;
  const char* flag;
  std::vector<const char*> values;
};

class HostileFlagTest : public LaunchPlanTest, public ::testing::WithParamInterface<HostileFlag> {};

TEST_P(HostileFlagTest, IsAnErrorThatNamesFlagAndValue) {
  for (const char* value : GetParam().values) {
    const Error error = refused({"--num_processes", "2", GetParam().flag, value, program_});
    EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument) << value;
    EXPECT_THAT(error.message(), HasSubstr(std::string(GetParam().flag) + " is '" + value + "'"));
    EXPECT_THAT(error.remedy(), Not(IsEmpty()));
  }
}

INSTANTIATE_TEST_SUITE_P(
    Values,
    HostileFlagTest,
    ::testing::Values(
        HostileFlag{"Processes",
                    "--num_processes",
                    {"0", "-1", "two", "", "1e3", "2.0", "99999999999", "2 "}},
        HostileFlag{"Port", "--main_process_port", {"-1", "65536", "http", "0x10"}},
        HostileFlag{"Threads", "--num_cpu_threads_per_process", {"0", "-2", "many"}},
        HostileFlag{"Restarts", "--max_restarts", {"-1", "often", "1000001"}},
        HostileFlag{"Grace", "--stop_grace", {"soon", "-1", "1w", "nan", "inf", "", "25h"}},
        HostileFlag{"Hang", "--hang_timeout", {"0", "soon", "-1", "", "Auto", "on"}},
        HostileFlag{"Check", "--preflight", {"nameless", "=true", "a b=true", "empty="}},
        HostileFlag{"CheckTime", "--preflight_seconds", {"0", "-1", "long"}},
        HostileFlag{"Interval", "--monitor_interval", {"fast", "-0.1"}},
        HostileFlag{"Tee",
                    "--tee",
                    {"4", "", "0:4", "0:3,", ",", "2:3", "a:1", ":1", "-1:1", "0:", "0:3;1:1"}},
        HostileFlag{"Precision", "--mixed_precision", {"fp61", "", "BF16 "}},
        HostileFlag{"Dynamo", "--dynamo_backend", {"inducto", ""}},
        HostileFlag{"Gpus", "--gpu_ids", {"0,,1", ",", "0,", "0 1", "0;rm"}}),
    [](const auto& param_info) { return param_info.param.name; });

TEST_F(LaunchPlanTest, AllFaultsAreReportedAtOnce) {
  const Error error = refused(
      {"--num_processes", "0", "--mixed_precision", "bf61", "--tee", "9", folder_.file("none")});

  const std::string text = error.render();
  EXPECT_THAT(text, HasSubstr("--num_processes is '0'"));
  EXPECT_THAT(text, HasSubstr("--mixed_precision is 'bf61'"));
  EXPECT_THAT(text, HasSubstr("did you mean bf16?"));
  EXPECT_THAT(text, HasSubstr("--tee is '9'"));
  EXPECT_THAT(text, HasSubstr("there is no " + folder_.file("none")));
}

TEST_F(LaunchPlanTest, TooManyProcessesAreRefusedWithTheReason) {
  const Error error = refused({"--num_processes", "10000", program_});

  EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
  EXPECT_THAT(error.message(), HasSubstr("at most 1024 workers run on one machine"));
}

TEST_F(LaunchPlanTest, AMissingScriptNamesASimilarOne) {
  const Error error = refused({folder_.file("trian.py")});

  EXPECT_EQ(error.code(), ErrorCode::kScriptMissing);
  EXPECT_THAT(error.message(), HasSubstr("did you mean " + script_ + "?"));
}

TEST_F(LaunchPlanTest, AFileWithoutThePermissionNamesTheCommand) {
  const Error error = refused({folder_.write("prog",
                                             "\x7f"
                                             "ELF")});

  EXPECT_EQ(error.code(), ErrorCode::kScriptNotExecutable);
  EXPECT_THAT(error.remedy(), HasSubstr("chmod +x " + folder_.file("prog")));
}

TEST_F(LaunchPlanTest, PythonIsRunWithPythonWhateverItsNameIs) {
  folder_.write("bin/python3", "#!/bin/sh\n", true);
  const std::string scripts[] = {folder_.write("train", "import os\n"),
                                 folder_.write("train2", "\n#!/usr/bin/env python3\n"),
                                 folder_.write("train3", "#!/usr/bin/env python3\n"),
                                 folder_.write("app.pyz", std::string("PK\x03\x04\0", 5), true),
                                 folder_.write("m.pyc", std::string("\xa7\r\0", 3))};
  for (const std::string& script : scripts) {
    const std::vector<std::string> argv = plan({script}).spec.workers[0].argv;
    ASSERT_EQ(argv.size(), 3U) << script;
    EXPECT_EQ(argv[0], folder_.file("bin/python3")) << script;
    EXPECT_EQ(argv[2], script);
  }
  for (const std::string& other : {folder_.write("job", "#!/bin/sh\n"),
                                   folder_.write("run.sh", "python train.py\n"),
                                   folder_.write("settings.json", "{}"),
                                   folder_.write("data", std::string("a\0b", 3))}) {
    EXPECT_EQ(refused({other}).code(), ErrorCode::kScriptNotExecutable) << other;
  }
}

TEST_F(LaunchPlanTest, AScriptWhoseInterpreterIsMissingSaysWhich) {
  const Error error = refused({folder_.write("prog", "#!/no/such/python\n", true)});

  EXPECT_EQ(error.code(), ErrorCode::kExecFailed);
  EXPECT_THAT(error.message(), HasSubstr("/no/such/python"));
}

TEST_F(LaunchPlanTest, FoldersAndEmptyFilesAreNoPrograms) {
  EXPECT_EQ(refused({folder_.file("bin")}).code(), ErrorCode::kScriptNotExecutable);
  EXPECT_THAT(refused({folder_.write("empty", "", true)}).message(), HasSubstr("empty file"));
}

TEST_F(LaunchPlanTest, AProgramOnPathIsPointedAt) {
  folder_.write("bin/accel_test_tool", "#!/bin/sh\n", true);

  EXPECT_THAT(refused({"accel_test_tool"}).remedy(), HasSubstr("--no_python accel_test_tool"));
  EXPECT_EQ(plan({"--no_python", "accel_test_tool"}).spec.workers[0].argv[0],
            folder_.file("bin/accel_test_tool"));
  EXPECT_EQ(refused({"--no_python", "accel_no_such_tool"}).code(), ErrorCode::kScriptMissing);
}

TEST_F(LaunchPlanTest, ModuleAndNoPythonExcludeEachOther) {
  EXPECT_THAT(refused({"-m", "--no_python", "x"}).message(),
              HasSubstr("--module and --no_python cannot be used together"));
}

TEST_F(LaunchPlanTest, OneMachineHasTheRankZero) {
  EXPECT_EQ(refused({"--machine_rank", "1", program_}).code(), ErrorCode::kInvalidArgument);
}

TEST_F(LaunchPlanTest, MultiGpuNeedsTwoProcessesAndTheGpus) {
  EXPECT_THAT(refused({"--multi_gpu", "--num_processes", "1", program_}).message(),
              HasSubstr("You need to use at least 2 processes to use `--multi_gpu`."));
  EXPECT_EQ(refused({"--multi_gpu", "--num_processes", "2", program_}).code(),
            ErrorCode::kUnsupported);
  EXPECT_EQ(refused({"--multi_gpu", "--cpu", program_}).code(), ErrorCode::kUsage);
}

TEST_F(LaunchPlanTest, ConsumerGpusAreKeptApartWithOneNotice) {
  num_gpus_ = 2;
  host_.nvidia = [] {
    const NvidiaGpu gpu = {.name = "NVIDIA GeForce RTX 4090"};
    return NvidiaMachine{.driver_version = "535.129.03", .gpus = {gpu, gpu}};
  };
  host_.environment["NCCL_IB_DISABLE"] = "0";
  const LaunchPlan on_gpus = plan({"--num_processes", "2", program_});
  const LaunchPlan on_cpu = plan({"--cpu", "--num_processes", "2", program_});

  EXPECT_EQ(on_gpus.spec.env.at("NCCL_P2P_DISABLE"), "1");
  EXPECT_EQ(on_gpus.spec.env.at("NCCL_IB_DISABLE"), "0");
  EXPECT_THAT(on_gpus.notices, Contains(HasSubstr("550.40.07: NCCL_P2P_DISABLE=1 is set")));
  EXPECT_THAT(on_cpu.spec.env, Not(Contains(Key("NCCL_P2P_DISABLE"))));
}

TEST_F(LaunchPlanTest, GpuForTwoWorkersIsAskedForByNamingItTwice) {
  num_gpus_ = 1;
  const Error mistake = refused({"--multi_gpu", "--num_processes", "2", program_});
  const LaunchPlan wish =
      plan({"--multi_gpu", "--num_processes", "2", "--gpu_ids", "0,0", program_});

  EXPECT_THAT(mistake.message(), HasSubstr("2 workers cannot share 1 GPU: ranks 0 and 1"));
  EXPECT_THAT(mistake.remedy(), HasSubstr("--gpu_ids"));
  EXPECT_EQ(wish.spec.env.at("CUDA_VISIBLE_DEVICES"), "0");
  EXPECT_THAT(
      refused({"--multi_gpu", "--num_processes", "3", "--gpu_ids", "0,0", program_}).message(),
      HasSubstr("3 workers cannot share 2 GPUs"));
}

TEST_F(LaunchPlanTest, GpusAreNamedAsPeopleTypeThem) {
  EXPECT_EQ(plan({"--gpu_ids", " 0, 1 ", program_}).spec.env.at("CUDA_VISIBLE_DEVICES"), "0,1");
  EXPECT_EQ(plan({"--gpu_ids", "MIG-GPU-8f/1/0", program_}).spec.env.at("CUDA_VISIBLE_DEVICES"),
            "MIG-GPU-8f/1/0");
}

TEST_F(LaunchPlanTest, OneGpuIsForOneWorkerHoweverTheyWereAskedFor) {
  num_gpus_ = 1;
  const std::string none = folder_.write("none.yaml", "distributed_type: NO\nnum_processes: 2\n");
  for (const Words& words : {Words{"--num_processes", "2", program_},
                             Words{"--nproc_per_node", "2", program_},
                             Words{"--config_file", none, program_},
                             Words{"--gpu_ids", "0", "--num_processes", "2", program_},
                             Words{"--nnodes",
                                   "2",
                                   "--rdzv_endpoint",
                                   "127.0.0.1:1",
                                   "--rdzv_insecure",
                                   "--rdzv_token_file",
                                   "token",
                                   "--num_processes",
                                   "2",
                                   program_}}) {
    const Error error = refused(words);
    EXPECT_EQ(error.code(), ErrorCode::kUnsupported);
    EXPECT_THAT(error.message(), HasSubstr("2 workers cannot share 1 GPU: ranks 0 and 1"));
    EXPECT_THAT(error.remedy(), HasSubstr("--cpu"));
  }

  EXPECT_EQ(plan({"--cpu", "--num_processes", "2", program_}).spec.workers.size(), 2u);
  EXPECT_EQ(plan({"--num_processes", "1", program_}).spec.workers.size(), 1u);
  EXPECT_EQ(plan({"--gpu_ids", "0,0", "--num_processes", "2", program_}).spec.workers.size(), 2u);
  // Of the agents' GPUs this machine knows nothing.
  EXPECT_EQ(plan({"--agent", "--num_processes", "2", program_}).spec.workers.size(), 2u);
}

TEST_F(LaunchPlanTest, AConfigurationWithoutANumberAsksForIt) {
  const std::string config = folder_.write("c.yaml", "distributed_type: MULTI_CPU\n");

  EXPECT_THAT(refused({"--config_file", config, program_}).message(),
              HasSubstr("You need to manually pass in `--num_processes` using this config yaml."));
  EXPECT_EQ(plan({"--config_file", config, "--num_processes", "2", program_}).spec.workers.size(),
            2u);
}

TEST_F(LaunchPlanTest, NoScriptAtAllShowsTheUsage) {
  EXPECT_THAT(refused({"--cpu"}).message(), HasSubstr("no script"));
  EXPECT_THAT(refused({}).remedy(), HasSubstr("accel-launch --help"));
}

}  // namespace
}  // namespace accel::launcher
