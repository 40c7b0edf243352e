// Lines of torchrun, as accel-torchrun and accel-launch take them.

#include "launcher/flags/torchrun_flags.h"

#include <algorithm>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "launcher/flags/flag_table.h"
#include "launcher/workers/spec_flags.h"
#include "tests/support/launch_plan_fixture.h"

namespace accel::launcher::torchrun_flags_test {
namespace {

using supervisor::Streams;
using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Key;
using ::testing::Not;
using ::testing::Pair;

class TorchrunTest : public test::LaunchPlanFixture {
 protected:
  TorchrunTest() { host_.is_torchrun = true; }
};

TEST_F(TorchrunTest, OneWorkerHasRanksAndNothingOfAccelerate) {
  num_gpus_ = 4;
  const LaunchPlan result = plan({});

  ASSERT_EQ(result.spec.workers.size(), 1u);
  EXPECT_EQ(result.spec.env_mode, EnvMode::kDistributed);
  EXPECT_THAT(result.notices, IsEmpty());
  EXPECT_TRUE(
      std::none_of(result.spec.env.begin(), result.spec.env.end(), [](const auto& variable) {
        return variable.first.starts_with("ACCELERATE_");
      }));
}

TEST_F(TorchrunTest, WhatTheUserSetForAccelerateStays) {
  host_.environment["ACCELERATE_MIXED_PRECISION"] = "bf16";

  EXPECT_THAT(plan({"--nproc-per-node=2"}).spec.env,
              Contains(Pair("ACCELERATE_MIXED_PRECISION", "bf16")));
  EXPECT_THAT(plan({"--nproc-per-node=2", "--mixed_precision", "fp16"}).spec.env,
              Contains(Pair("ACCELERATE_MIXED_PRECISION", "fp16")));
}

TEST_F(TorchrunTest, TheDefaultConfigurationIsNotRead) {
  host_.environment["HF_HOME"] = folder_.file("hf");
  folder_.write("hf/accelerate/default_config.yaml", "distributed_type: 'NO'\nnum_processes: 3\n");

  EXPECT_EQ(plan({}).spec.workers.size(), 1u);
  host_.is_torchrun = false;
  EXPECT_EQ(plan({}).spec.workers.size(), 3u);
}

TEST_F(TorchrunTest, WorkersAreCountedByWhatTheMachineHas) {
  machine_ = "package:1 [numa] core:3 pu:2";
  EXPECT_EQ(plan({"--nproc_per_node", "5"}).spec.workers.size(), 5u);
  EXPECT_EQ(plan({"--nproc_per_node", "cpu"}).spec.workers.size(), 6u);
  EXPECT_EQ(plan({"--nproc_per_node", "auto"}).spec.workers.size(), 6u);
  EXPECT_EQ(refused({"--nproc_per_node", "gpu"}).code(), ErrorCode::kUnsupported);
  num_gpus_ = 2;
  EXPECT_EQ(plan({"--nproc_per_node", "gpu"}).spec.workers.size(), 2u);
  EXPECT_EQ(plan({"--nproc_per_node", "auto"}).spec.workers.size(), 2u);
  EXPECT_THAT(refused({"--nproc_per_node", "some"}).message(),
              HasSubstr("--nproc-per-node is 'some', expected a number, cpu, gpu or auto"));
}

TEST_F(TorchrunTest, MoreWorkersThanGpusAreTheUsersAffair) {
  num_gpus_ = 2;

  const LaunchPlan more = plan({"--nproc_per_node", "4"});
  const LaunchPlan enough = plan({"--nproc_per_node", "2"});

  EXPECT_EQ(more.spec.workers.size(), 4u);
  EXPECT_THAT(more.notices,
              Contains(HasSubstr("4 workers for 2 GPUs: if they compute there, "
                                 "ranks 0 and 2 both use the first one")));
  EXPECT_THAT(enough.notices, Not(Contains(HasSubstr("GPU"))));
  EXPECT_THAT(refused({"--use_fsdp", "--nproc_per_node", "4"}).message(),
              HasSubstr("4 workers cannot share 2 GPUs: ranks 0 and 2"));
}

TEST_F(TorchrunTest, PortAndStandaloneChooseTheStore) {
  const LaunchPlan exact = plan({"--master_port", "29777", "--master-addr", "127.0.0.1"});
  const LaunchPlan any = plan({"--standalone",
                               "--nnodes=1",
                               "--rdzv-backend=c10d",
                               "--rdzv-endpoint=localhost:0",
                               "--rdzv-id",
                               "7"});

  EXPECT_EQ(exact.spec.store.port, 29777);
  EXPECT_TRUE(exact.spec.store.exact_port);
  EXPECT_EQ(any.spec.store.port, 0);
  EXPECT_FALSE(any.spec.store.exact_port);
  EXPECT_FALSE(nodes_of(any));
}

TEST_F(TorchrunTest, ATakenPortIsAnErrorOfTheFlagAndANoticeOfAVariable) {
  host_.port_fault = [](std::uint16_t) { return Error(ErrorCode::kPortInUse, "held by nginx"); };

  EXPECT_TRUE(plan({"--master_port", "29777"}).spec.store.exact_port);
  host_.environment["PET_MASTER_PORT"] = "29777";
  const LaunchPlan of_variable = plan({});
  EXPECT_EQ(of_variable.spec.store.port, 0);
  EXPECT_THAT(of_variable.notices, Contains(HasSubstr("held by nginx")));
}

TEST_F(TorchrunTest, WorkersOfOneNodeAreToldTheNameOfTheJob) {
  EXPECT_EQ(plan({"--nproc_per_node", "1"}).spec.identity.run_id, "none");
  EXPECT_EQ(plan({"--rdzv-id", "night"}).spec.identity.run_id, "night");
  EXPECT_EQ(plan({"--rdzv-id", "night/1"}).spec.job_id, "night_1-1-abc");  // and so its log folder
  EXPECT_EQ(plan({"--rdzv-backend=c10d", "--rdzv-endpoint=localhost:0", "--rdzv-id=7"})
                .spec.identity.run_id,
            "7");
  const LaunchPlan alone = plan({"--standalone", "--rdzv-id=7"});
  EXPECT_EQ(alone.spec.identity.run_id, alone.spec.job_id);
}

TEST_F(TorchrunTest, ABackendThatIsNoneIsRefusedOnOneNodeToo) {
  EXPECT_THAT(refused({"--rdzv_backend", "foo"}).message(),
              HasSubstr("expected one of static, c10d, etcd, etcd-v2"));
}

TEST_F(TorchrunTest, OneNodeMeetsNobody) {
  const LaunchPlan result = plan({"--nnodes=1",
                                  "--node_rank=0",
                                  "--rdzv_backend=c10d",
                                  "--rdzv_endpoint=localhost:29400",
                                  "--rdzv_id=7",
                                  "--rdzv_conf",
                                  "timeout=900"});

  EXPECT_FALSE(nodes_of(result));
}

TEST_F(TorchrunTest, SeveralNodesMeetByC10d) {
  const Words words = {"--nnodes=2",
                       "--nproc_per_node=2",
                       "--node_rank=1",
                       "--rdzv_endpoint=10.0.0.7:29400",
                       "--rdzv_token_file=token",
                       "--rdzv_tls_dir=tls",
                       "--rdzv_conf=join_timeout=90,last_call_timeout=2.5,close_timeout=9"};
  Words with_backend = words;
  with_backend.emplace_back("--rdzv_backend=c10d");
  const LaunchPlan result = plan(with_backend);

  ASSERT_TRUE(nodes_of(result));
  EXPECT_EQ(nodes_of(result)->max_nodes, 2);
  EXPECT_EQ(nodes_of(result)->join_timeout_seconds, 90);
  EXPECT_EQ(nodes_of(result)->last_call, std::chrono::milliseconds(2'500));
  EXPECT_THAT(result.notices, Contains("--rdzv-conf close_timeout has no effect"));
  EXPECT_THAT(refused(words).message(), HasSubstr("--rdzv-token-file is not for"));  // static
  with_backend.back() = "--rdzv_backend=etcd";
  EXPECT_THAT(refused(with_backend).message(), HasSubstr("--rdzv-token-file is not for"));
}

TEST_F(TorchrunTest, EtcdSaysWhoIsMachine0) {
  const LaunchPlan result = plan({"--nnodes=2",
                                  "--node_rank=1",
                                  "--nproc_per_node=3",
                                  "--rdzv_backend=etcd",
                                  "--rdzv_endpoint=gpu-01",
                                  "--rdzv_id=night",
                                  "--local_addr=10.0.0.2",
                                  "--rdzv_conf",
                                  "protocol=https,cacert=ca.pem,cert=c.pem,key=k.pem,timeout=90"});

  ASSERT_TRUE(machines_of(result) && machines_of(result)->etcd);
  const MachinesSettings machines = *machines_of(result);
  EXPECT_EQ(machines.num_machines, 2);
  EXPECT_EQ(machines.machine_rank, std::nullopt);
  EXPECT_EQ(machines.run_id, "night");
  EXPECT_EQ(machines.port, 0);
  EXPECT_EQ(machines.join_timeout, std::chrono::seconds(90));
  EXPECT_EQ(machines.etcd->endpoint, "gpu-01:2379");
  EXPECT_EQ(machines.etcd->own_address, "10.0.0.2");
  EXPECT_EQ(machines.etcd->authority, "ca.pem");
  EXPECT_EQ(machines.etcd->certificate, "c.pem");
  EXPECT_EQ(machines.etcd->key, "k.pem");
  EXPECT_EQ(result.spec.workers.size(), 3U);
  EXPECT_THAT(result.notices, IsEmpty());
}

TEST_F(TorchrunTest, EtcdSaysWhoHostsTheCoordinatorOfARange) {
  const LaunchPlan result = plan({"--nnodes=1:4",
                                  "--node_rank=1",
                                  "--rdzv_backend=etcd",
                                  "--rdzv_endpoint=gpu-01",
                                  "--rdzv_id=night",
                                  "--local_addr=10.0.0.2",
                                  "--rdzv_conf=protocol=https,cacert=ca.pem,cert=c.pem,key=k.pem"});

  ASSERT_TRUE(nodes_of(result));
  EXPECT_FALSE(machines_of(result));
  const auto request = elastic_request_from_json(to_json(*nodes_of(result), result.spec));
  ASSERT_TRUE(request);
  const ElasticSettings& nodes = request->settings;
  EXPECT_EQ(std::pair(nodes.min_nodes, nodes.max_nodes), std::pair(1, 4));
  EXPECT_EQ(nodes.job, "night");
  EXPECT_EQ(request->spec.identity.run_id, "night");
  EXPECT_TRUE(nodes.insecure);
  EXPECT_EQ(nodes.etcd.endpoint, "gpu-01:2379");
  EXPECT_EQ(nodes.etcd.own_address, "10.0.0.2");
  EXPECT_EQ(nodes.etcd.authority, "ca.pem");
  EXPECT_EQ(nodes.etcd.certificate, "c.pem");
  EXPECT_EQ(nodes.etcd.key, "k.pem");
  EXPECT_EQ(nodes.program, Program::kTorchrun);
  EXPECT_THAT(refused({"--nnodes=1:4", "--rdzv_backend=etcd"}).message(),
              HasSubstr("--rdzv-backend etcd needs --rdzv-endpoint"));
}

TEST_F(TorchrunTest, EtcdNeedsAnEndpointAndWithTlsAnAuthority) {
  EXPECT_THAT(refused({"--nnodes=2", "--rdzv_backend=etcd-v2"}).message(),
              HasSubstr("--rdzv-backend etcd needs --rdzv-endpoint"));
  const auto with_conf = [&](const std::string& conf) {
    return refused(
               {"--nnodes=2", "--rdzv_backend=etcd", "--rdzv_endpoint=a:1", "--rdzv_conf=" + conf})
        .message();
  };
  EXPECT_THAT(with_conf("protocol=https"), HasSubstr("--rdzv-conf protocol=https needs cacert"));
  EXPECT_THAT(with_conf("cert=c.pem,key=k.pem"), HasSubstr("--rdzv-conf cert needs cacert"));
  EXPECT_FALSE(machines_of(plan({"--nnodes=1", "--rdzv_backend=etcd", "--rdzv_endpoint=a:1"})));
}

TEST_F(TorchrunTest, VariablesAreTheDefaultsOfFlags) {
  host_.environment["PET_NPROC_PER_NODE"] = "3";
  host_.environment["PET_MASTER_PORT"] = "29888";
  host_.environment["PET_MAX_RESTARTS"] = "2";
  host_.environment["PET_STANDALONE"] = "0";
  const LaunchPlan result = plan({"--master_port", "29999"});

  EXPECT_EQ(result.spec.workers.size(), 3u);
  EXPECT_EQ(result.spec.store.port, 29999);
  EXPECT_EQ(result.spec.restart.max_restarts, 2);
  host_.environment["PET_STANDALONE"] = "maybe";
  EXPECT_THAT(refused({}).message(), HasSubstr("PET_STANDALONE is 'maybe', expected 0 or 1"));
}

TEST_F(TorchrunTest, FlagsAndFilesOfAccelLaunchBeatTheVariables) {
  host_.is_torchrun = false;
  host_.environment["PET_NPROC_PER_NODE"] = "3";

  EXPECT_EQ(plan({"--cpu"}).spec.workers.size(), 3u);
  EXPECT_EQ(plan({"--cpu", "--num_processes", "2"}).spec.workers.size(), 2u);
  EXPECT_EQ(plan(file("distributed_type: MULTI_CPU\nnum_processes: 4\n")).spec.workers.size(), 4u);

  host_.environment["PET_MASTER_PORT"] = "29888";
  host_.environment["PET_MASTER_ADDR"] = "10.0.0.9";  // refused, if it counted
  host_.environment["PET_NODE_RANK"] = "1";           // refused, if it counted
  const std::string text =
      "distributed_type: MULTI_CPU\nnum_processes: 4\nmain_process_port: 29777\n"
      "main_process_ip: 127.0.0.1\nmachine_rank: 0\n";
  EXPECT_EQ(plan(file(text)).spec.store.port, 29777);
  host_.environment["PET_STANDALONE"] = "1";
  EXPECT_EQ(plan(file(text)).spec.store.port, 29777);
  Words typed = file(text);
  typed.emplace_back("--standalone");
  EXPECT_EQ(plan(typed).spec.store.port, 0);
  host_.environment.erase("PET_NODE_RANK");
  host_.environment.erase("PET_MASTER_ADDR");
  EXPECT_EQ(plan({"--cpu", "--main_process_port", "29666"}).spec.store.port, 29666);
  EXPECT_EQ(plan({"--cpu"}).spec.store.port, 0);
  host_.environment.erase("PET_STANDALONE");
  EXPECT_EQ(plan(file("distributed_type: MULTI_CPU\nnum_processes: 4\n")).spec.store.port, 29888);
}

// One node of an allocation, in a step of four tasks, of which each is a launch of its own.
EnvMap task_of_four() {
  return {{"SLURM_JOB_ID", "17"},
          {"SLURM_JOB_NODELIST", "n[1-2]"},
          {"SLURM_JOB_NUM_NODES", "2"},
          {"SLURM_TASKS_PER_NODE", "4(x2)"},
          {"SLURM_STEP_ID", "0"},
          {"SLURM_STEP_NODELIST", "n1"},
          {"SLURM_STEP_NUM_NODES", "1"},
          {"SLURM_STEP_TASKS_PER_NODE", "4"},
          {"SLURM_NODEID", "0"},
          {"SLURM_PROCID", "2"},
          {"SLURM_LOCALID", "2"},
          {"SLURMD_NODENAME", "n1"},
          {"SLURM_LAUNCH_NODE_IPADDR", "10.0.0.1"}};
}

TEST_F(TorchrunTest, OneNodeIsOneInsideSlurmToo) {
  for (const auto& [name, value] : task_of_four()) host_.environment[name] = value;
  const Words c10d = {
      "--cpu", "--num_processes=1", "--rdzv_backend=c10d", "--rdzv_endpoint=n1:0", "--nnodes=1"};

  EXPECT_FALSE(nodes_of(plan({"--nnodes=1"})));
  EXPECT_FALSE(nodes_of(plan({"--standalone"})));
  EXPECT_THAT(refused({}).message(), HasSubstr("SLURM runs 4 tasks on node n1"));
  host_.is_torchrun = false;
  EXPECT_FALSE(nodes_of(plan(c10d)));
  EXPECT_FALSE(nodes_of(plan({"--cpu", "--num_processes=1", "--standalone"})));
}

TEST_F(TorchrunTest, OneNodeNeverTakesAnAllocationOfMany) {
  for (const auto& [name, value] : task_of_four()) {
    if (!name.starts_with("SLURM_STEP_")) host_.environment[name] = value;
  }
  host_.environment["SLURM_TASKS_PER_NODE"] = "1(x2)";
  host_.environment["SLURM_PROCID"] = host_.environment["SLURM_LOCALID"] = "0";

  EXPECT_THAT(refused({"--nnodes=1"}).message(), HasSubstr("--nnodes 1 with 2 nodes"));
  const Error error = refused({"--standalone"});
  EXPECT_THAT(error.message(), HasSubstr("--standalone with 2 nodes in the allocation"));
  EXPECT_THAT(error.remedy(), HasSubstr("leave --standalone out"));
  EXPECT_EQ(nodes_of(plan({}))->max_nodes, 2);
}

TEST_F(TorchrunTest, WhatIsForSeveralNodesIsRefusedBesideStandalone) {
  EXPECT_THAT(refused({"--standalone", "--rdzv_token_file=t"}).message(),
              HasSubstr("--rdzv-token-file is for several nodes, and --standalone for one"));
}

TEST_F(TorchrunTest, AnAgentsJobOfOneNodeKeepsItsName) {
  for (const char* one : {"--nnodes=1", "--standalone", "--rdzv_backend=c10d"}) {
    const auto elastic = nodes_of(plan({one, "--agent", "--rdzv_id=mine"}));
    ASSERT_TRUE(elastic) << one;
    EXPECT_EQ(elastic->meeting, Meeting::kAgent);
    EXPECT_EQ(elastic->job, "mine");
    EXPECT_EQ(elastic->max_nodes, 1);
  }
}

TEST_F(TorchrunTest, TwoNamesOfOneThingMustAgree) {
  EXPECT_EQ(plan({"--nproc_per_node=2", "--num_processes=2"}).spec.workers.size(), 2u);
  const Error error = refused({"--nproc_per_node=2", "--num_processes=3"});

  EXPECT_EQ(error.code(), ErrorCode::kUsage);
  EXPECT_THAT(error.message(), HasSubstr("--nproc-per-node is 2, and --num_processes is 3"));
}

// Whatever is wrong, its message and remedy name what a user of torchrun knows.
TEST_F(TorchrunTest, ErrorsSpeakOfTheFlagsOfTorchrun) {
  const std::pair<Words, const char*> cases[] = {
      {{"--nproc-per-node=x"}, "--nproc-per-node is 'x'"},
      {{"--nproc-per-node=0"}, "--nproc-per-node is '0', expected a whole number from 1"},
      {{"--nproc-per-node=5000"}, "--nproc-per-node is 5000, but at most"},
      {{"--nproc_per_node=gpu"}, "--nproc-per-node is gpu, but no GPU"},
      {{"--max-restarts=-1"}, "--max-restarts is '-1'"},
      {{"--master-port=70000"}, "--master-port is '70000'"},
      {{"--node-rank=1"}, "--node-rank is 1 with one machine"},
      {{"--nnodes=2", "--node-rank=2", "--master-addr=10.0.0.7"}, "0 to 1 with --nnodes 2"},
      {{"--nnodes=2", "--master-port=0"}, "--master-port is 0"},
      {{"--nnodes=1:2"}, "--rdzv-backend static knows one number"},
      {{"--nnodes=2", "--rdzv-backend=c10d"}, "--nnodes 2 needs --rdzv-endpoint"},
      {{"--rdzv-conf=timeout"}, "--rdzv-conf is 'timeout'"},
      {{"--nnodes=2", "--rdzv-backend=etcd"}, "--rdzv-backend etcd needs --rdzv-endpoint"},
      {{"--local-ranks-filter=x"}, "--local-ranks-filter is 'x'"},
      {{"--redirects=x"}, "--redirects is 'x'"},
      {{"--numa-binding=cores"}, "--numa-binding is 'cores'"},
      {{"--no-python", "-m"}, "--no-python cannot be used together"},
  };

  for (const auto& [flags, expected] : cases) {
    const std::string text = refused(flags).render("accel-torchrun");
    EXPECT_THAT(text, HasSubstr(expected));
    for (const char* other :
         {"num_processes", "num_machines", "machine_rank", "main_process", "accel-launch", "_per_"})
      EXPECT_THAT(text, Not(HasSubstr(other)));
  }
}

TEST_F(TorchrunTest, WhatCannotBeParsedPointsToItsOwnHelp) {
  for (const Words& words :
       {Words{"--no-such-flag-at-all", "train"}, Words{"--nproc-per-node"}, Words{}}) {
    const auto result = resolve_launch(words, host_);

    ASSERT_FALSE(result.has_value());
    EXPECT_THAT(result.error().remedy(), HasSubstr("accel-torchrun --help"));
  }
}

TEST_F(TorchrunTest, HelpBeginsWithTheFlagsOfTorchrun) {
  const std::string help = resolve_launch({"--help"}, host_)->answer.value();

  EXPECT_LT(help.find("--nproc_per_node"), help.find("--max_restarts"));
  EXPECT_EQ(help.find("accel-launch "), std::string::npos);
}

TEST_F(TorchrunTest, WorkersMaySeeOneDeviceEachAsTheirFirst) {
  host_.environment["CUDA_VISIBLE_DEVICES"] = "5, GPU-7 ,2";
  const LaunchPlan result = plan({"--nproc_per_node=2", "--virtual-local-rank"});

  EXPECT_TRUE(result.spec.workers[1].has_virtual_local_rank);
  EXPECT_THAT(result.spec.workers[0].env, Contains(Pair("CUDA_VISIBLE_DEVICES", "5")));
  EXPECT_THAT(result.spec.workers[1].env, Contains(Pair("CUDA_VISIBLE_DEVICES", "GPU-7")));
  EXPECT_THAT(refused({"--nproc_per_node=4", "--virtual-local-rank"}).message(),
              HasSubstr("each of 4 workers a device of its own"));
  host_.environment.erase("CUDA_VISIBLE_DEVICES");
  host_.environment["PET_VIRTUAL_LOCAL_RANK"] = "1";
  EXPECT_THAT(plan({"--nproc_per_node=2"}).spec.workers[1].env,
              Contains(Pair("CUDA_VISIBLE_DEVICES", "1")));
}

TEST_F(TorchrunTest, WorkersOfOthersKeepTheirRanksAndStreams) {
  for (const char* flag : {"virtual_local_rank", "duplicate_stdout_filters"}) {
    CommandLine line;
    line.given[flag] = "true";
    supervisor::JobSpec spec;
    std::vector<std::string> notices;
    const auto applied = apply_spec_flags(line, WorkerPlace::kElsewhere, spec, notices);
    ASSERT_FALSE(applied) << flag;
    EXPECT_EQ(applied.error().code(), ErrorCode::kUnsupported);
  }
}

TEST_F(TorchrunTest, LinesOfTeedStreamsAreFiltered) {
  const LaunchPlan teed = plan({"--tee=1",
                                "--log_dir",
                                folder_.file("logs"),
                                "--duplicate-stdout-filters=apple,a,,b",
                                "--duplicate_stderr_filters=x"});

  EXPECT_THAT(teed.spec.log.out_filters, ElementsAre("apple", "a,b"));
  EXPECT_THAT(teed.spec.log.err_filters, IsEmpty());
  EXPECT_THAT(teed.notices, Contains(HasSubstr("--duplicate-stderr-filters has no effect")));
  EXPECT_THAT(split_filters("a,,,b,"), ElementsAre("a,", "b", ""));  // as torchrun reads it
}

TEST_F(TorchrunTest, WorkersAreBoundToWhatIsNamed) {
  machine_ = "package:2 [numa] core:2 pu:2";
  const auto cpus = [&](const char* mode) {
    return plan({"--nproc_per_node=2", "--numa_binding", mode}).spec.workers[1].cpus;
  };

  EXPECT_THAT(cpus("node"), ElementsAre(4, 5, 6, 7));
  EXPECT_THAT(cpus("socket"), ElementsAre(4, 5, 6, 7));
  EXPECT_THAT(cpus("exclusive"), ElementsAre(4, 5, 6, 7));
  EXPECT_THAT(cpus("core-complex"), Not(IsEmpty()));
  EXPECT_EQ(refused({"--numa_binding", "rack"}).code(), ErrorCode::kInvalidArgument);
}

TEST_F(TorchrunTest, AScriptMayBeRunByItsPath) {
  folder_.write("tool", "print(1)\n");
  const LaunchPlan result =
      or_throw(resolve_launch({"--run_path", folder_.file("tool"), "--x"}, host_));

  const std::vector<std::string>& argv = result.spec.workers[0].argv;
  ASSERT_EQ(argv.size(), 6u);
  EXPECT_EQ(argv[0], python_);
  EXPECT_EQ(argv[2], "-c");
  EXPECT_THAT(argv[3], HasSubstr("runpy.run_path"));
  EXPECT_EQ(argv[5], "--x");
  EXPECT_EQ(refused({"--run_path", "-m"}).code(), ErrorCode::kUsage);
}

TEST_F(TorchrunTest, FlagsThatDoNothingSaySo) {
  const LaunchPlan result = plan({"--start-method=fork",
                                  "--logs-specs=default",
                                  "--event_log_handler=null",
                                  "--local_addr=10.0.0.1",
                                  "--signals-to-handle=SIGTERM"});

  EXPECT_THAT(result.notices,
              AllOf(Contains(HasSubstr("--start-method has no effect")),
                    Contains(HasSubstr("--logs-specs has no effect")),
                    Contains(HasSubstr("--event-log-handler has no effect")),
                    Contains(HasSubstr("--local-addr has no effect"))));
  EXPECT_THAT(result.spec.env, Contains(Pair("TORCHELASTIC_SIGNALS_TO_HANDLE", "SIGTERM")));
}

TEST_F(TorchrunTest, AMalformedConfIsNamed) {
  EXPECT_THAT(refused({"--rdzv_conf", "join_timeout"}).message(),
              HasSubstr("--rdzv-conf is 'join_timeout', expected KEY=VALUE"));
}

TEST(PetFlags, AreAllKnown) {
  for (const std::string_view name : pet_flags()) EXPECT_NE(find_flag(name), nullptr) << name;
}

}  // namespace
}  // namespace accel::launcher::torchrun_flags_test
