#include "launcher/start/ssh/host_launch.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "launcher/start/ssh/host_spec.h"
#include "launcher/start/ssh/listed_variables.h"
#include "tests/support/launch_plan_fixture.h"

namespace accel::launcher::host_launch_test {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::IsSupersetOf;
using ::testing::Key;
using ::testing::Not;
using ::testing::Pair;

TEST(HostLaunch, TheCommandOfAHostIsForAShell) {
  const HostSettings settings = {
      .hosts = {{"w-1", {0, 1}}, {"w-2", {1, 3}}}, .main_address = "w-1", .main_port = 1234};
  const HostCommand command = {.folder = "/my work",
                               .program = "/opt/bin/accel-torchrun",
                               .variables = {{"NAME", "it's"}},
                               .flags = {"--quiet"},
                               .script = {"train.py", "--text", "a b"}};

  EXPECT_EQ(host_command_text(settings, command, 1),
            "cd '/my work' && exec env 'NAME=it'\\''s' CUDA_VISIBLE_DEVICES=1,3 "
            "/opt/bin/accel-torchrun --stop_with_stdin --nnodes 2 --node_rank 1 --master_addr w-1 "
            "--master_port 1234 --nproc_per_node 2 --quiet train.py --text 'a b'");
}

TEST(HostLaunch, PdshDoesNotReadPercentSignsOfTheCommand) {
  EXPECT_THAT(transport_words(HostTransport::kPdsh, "w-1", "echo 5%h"),
              ElementsAre("pdsh", "-b", "-S", "-N", "-R", "ssh", "-w", "w-1", "echo 5%%h"));
  EXPECT_THAT(transport_words(HostTransport::kSsh, "w-1", "echo 5%h"),
              AllOf(Contains("BatchMode=yes"), Contains("w-1"), Contains("echo 5%h")));
}

TEST(HostLaunch, HostsGetOurVariablesAndThoseThatDeepSpeedExports) {
  const EnvMap inherited = {{"HOME", "/root"},
                            {"HF_TOKEN", "secret"},
                            {"NCCL_DEBUG", "INFO"},
                            {"PYTHONPATH", "/old"},
                            {"CUDA_VISIBLE_DEVICES", "0"}};
  EnvMap workers = inherited;
  workers["PYTHONPATH"] = "/old:/work";
  workers["ACCELERATE_USE_DEEPSPEED"] = "true";

  EXPECT_THAT(exported_variables(workers, inherited, {{"NCCL_DEBUG", "WARN"}, {"LISTED", "1"}}),
              ElementsAre(Pair("ACCELERATE_USE_DEEPSPEED", "true"),
                          Pair("LISTED", "1"),
                          Pair("NCCL_DEBUG", "WARN"),
                          Pair("PYTHONPATH", "/old:/work")));
}

TEST(HostLaunch, VariableFilesAreLinesOfNamesAndValues) {
  EXPECT_THAT(or_throw(parse_variable_file("A=1\n\nB=x=y z\r\nC=\n", "F")),
              ElementsAre(Pair("A", "1"), Pair("B", "x=y z"), Pair("C", "")));
  EXPECT_THAT(parse_variable_file("A=1\nexport\n", "F").error().message(),
              HasSubstr("F:2: 'export'"));
}

class HostPlan : public test::LaunchPlanFixture {
 protected:
  HostPlan() {
    hosts_ = folder_.write("hosts", "w-1 slots=2\nw-2 slots=4\n");
    folder_.write("bin/ssh", "#!/bin/sh\n", true);
    host_.program_folder = "/opt/bin";
  }
  Words two(Words more = {}) {
    Words words = {"--use_deepspeed", "--num_machines", "2", "--deepspeed_hostfile", hosts_};
    words.insert(words.end(), more.begin(), more.end());
    return words;
  }
  // What the shell of a host gets.
  static std::string text_for(const LaunchPlan& plan, std::size_t machine) {
    return plan.spec.workers.at(machine).argv.back();
  }
  std::string hosts_;
};

TEST_F(HostPlan, EachHostIsOneSshThatStopsByItsInput) {
  const LaunchPlan result = plan(two({"--num_processes", "4", "--zero_stage", "3"}));

  ASSERT_EQ(result.spec.workers.size(), 2U);
  EXPECT_THAT(result.spec.workers[1].argv, IsSupersetOf({"ssh", "w-2"}));
  EXPECT_TRUE(result.spec.workers[1].is_starter);
  EXPECT_TRUE(result.spec.console.stop_by_input);
  EXPECT_FALSE(result.spec.store.enabled);
  EXPECT_EQ(result.spec.env, host_.environment);
  EXPECT_THAT(result.hosts, ElementsAre("w-1", "w-2"));
  EXPECT_THAT(text_for(result, 1),
              AllOf(HasSubstr("ACCELERATE_DEEPSPEED_ZERO_STAGE=3"),
                    HasSubstr("ACCELERATE_USE_DEEPSPEED=true"),
                    HasSubstr("CUDA_VISIBLE_DEVICES=0,1 /opt/bin/accel-torchrun"),
                    HasSubstr("--nnodes 2 --node_rank 1 --master_addr w-1 --master_port 29500 "
                              "--nproc_per_node 2 ")));
}

TEST_F(HostPlan, OutputAndFailuresAreTheBusinessOfTheHosts) {
  const LaunchPlan result = plan(two({"--num_processes",
                                      "4",
                                      "--log_dir",
                                      "my logs",
                                      "--tee",
                                      "0:3,1:1",
                                      "--max_restarts",
                                      "2",
                                      "--preflight",
                                      "a=true",
                                      "--preflight",
                                      "b=true",
                                      "--log_prefix"}));

  EXPECT_THAT(text_for(result, 0),
              AllOf(HasSubstr("--log_dir 'my logs'"),
                    HasSubstr("--tee 0:3,1:1"),
                    HasSubstr("--max_restarts 2"),
                    HasSubstr("--preflight a=true --preflight b=true"),
                    HasSubstr("--log_prefix")));
  EXPECT_EQ(result.spec.log.dir, "");
  EXPECT_EQ(result.spec.restart.max_restarts, 0);
}

TEST_F(HostPlan, TheScriptGetsItsOwnDoubleDashOnTheHostsToo) {
  const auto on_host = [&](Words words) {
    words = two(std::move(words));
    words.insert(words.end(), {"--num_processes", "4", program_, "--", "--", "x"});
    return text_for(or_throw(resolve_launch(words, host_)), 0);
  };

  // The launcher there drops one, as this one did, but with --strict_compat.
  EXPECT_THAT(on_host({}), EndsWith(program_ + " -- -- x"));
  EXPECT_THAT(on_host({"--strict_compat"}),
              AllOf(HasSubstr(" --strict_compat "), EndsWith(program_ + " -- -- x")));
}

TEST_F(HostPlan, AFilterDecidesHowManyWorkersThereAre) {
  const LaunchPlan result = plan(two({"--deepspeed_inclusion_filter",
                                      "w-1:1@w-2:0,2,3",
                                      "--main_process_ip",
                                      "10.0.0.1",
                                      "--main_process_port",
                                      "77"}));

  EXPECT_THAT(text_for(result, 0),
              AllOf(HasSubstr("CUDA_VISIBLE_DEVICES=1 "),
                    HasSubstr("--master_addr 10.0.0.1 --master_port 77"),
                    HasSubstr("--nproc_per_node 1 ")));
  EXPECT_THAT(text_for(result, 1),
              AllOf(HasSubstr("CUDA_VISIBLE_DEVICES=0,2,3 "), HasSubstr("--nproc_per_node 3 ")));
}

TEST_F(HostPlan, PdshIsTakenWhenItIsNamedAndThere) {
  EXPECT_THAT(
      refused(two({"--num_processes", "2", "--deepspeed_multinode_launcher", "pdsh"})).remedy(),
      HasSubstr("apt install pdsh"));

  folder_.write("bin/pdsh", "#!/bin/sh\n", true);
  const LaunchPlan result =
      plan(two({"--num_processes", "2", "--deepspeed_multinode_launcher", "pdsh"}));
  EXPECT_EQ(result.spec.workers[0].argv[0], "pdsh");
  EXPECT_FALSE(result.spec.console.stop_by_input);
}

TEST_F(HostPlan, SecretsGoThroughTheInputAndNotIntoTheCommandLine) {
  folder_.write("home/.deepspeed_env", "HF_TOKEN=hf_123\nMY_NAME=a b\n");

  const LaunchPlan result = plan(two({"--num_processes", "2"}));

  EXPECT_THAT(text_for(result, 0),
              AllOf(HasSubstr("'MY_NAME=a b'"), HasSubstr(" ACCEL_STDIN_VARIABLES=16 ")));
  for (const auto& worker : result.spec.workers)
    for (const std::string& word : worker.argv) EXPECT_THAT(word, Not(HasSubstr("hf_123")));
  EXPECT_EQ(result.spec.console.held_input, std::string("HF_TOKEN=hf_123\0", 16));
  EXPECT_THAT(result.notices, Not(Contains(HasSubstr("HF_TOKEN"))));
}

TEST_F(HostPlan, OfPdshSecretsAreSaidToBeSeen) {
  folder_.write("bin/pdsh", "#!/bin/sh\n", true);
  folder_.write("home/.deepspeed_env", "HF_TOKEN=hf_123\n");

  const LaunchPlan result =
      plan(two({"--num_processes", "2", "--deepspeed_multinode_launcher", "pdsh"}));

  EXPECT_EQ(result.spec.console.held_input, "");
  EXPECT_THAT(result.notices, Contains(HasSubstr("HF_TOKEN can be read in the command lines")));
}

TEST_F(HostPlan, SecretsThatAPipeDoesNotTakeAreRefused) {
  folder_.write("home/.deepspeed_env", "HF_TOKEN=" + std::string(40'000, 'x') + "\n");

  EXPECT_THAT(refused(two({"--num_processes", "2"})).message(), HasSubstr("40010 bytes"));
}

TEST_F(HostPlan, WhatDoesNotFitIsRefusedWithItsNumbers) {
  const auto message = [&](Words words) { return refused(std::move(words)).message(); };

  EXPECT_THAT(message(two({"--num_processes", "3"})),
              HasSubstr("3, which does not divide by the 2"));
  EXPECT_THAT(message(two({"--num_processes", "6"})), HasSubstr("host w-1 has 2 slots"));
  EXPECT_THAT(message(two({"--num_processes", "2", "--main_process_port", "0"})),
              HasSubstr("is 0"));
  EXPECT_THAT(message(two({"--deepspeed_exclusion_filter", "w-2"})),
              HasSubstr("--num_machines is 2, but 1 host is taken"));
  EXPECT_THAT(message({"--use_deepspeed", "--num_machines", "2", "--deepspeed_hostfile", "/none"}),
              HasSubstr("/none"));
}

TEST_F(HostPlan, SlurmIsThePathOfItsAllocation) {
  EXPECT_THAT(refused(two({"--deepspeed_multinode_launcher", "slurm"})).remedy(),
              HasSubstr("salloc --nodes 2"));

  host_.environment.insert({{"SLURM_JOB_ID", "7"},
                            {"SLURM_JOB_NODELIST", "n[1-2]"},
                            {"SLURM_JOB_NUM_NODES", "2"},
                            {"SLURM_NODEID", "0"},
                            {"SLURMD_NODENAME", "n1"}});
  const LaunchPlan result =
      plan(two({"--deepspeed_multinode_launcher", "slurm", "--num_processes", "4"}));
  ASSERT_TRUE(nodes_of(result).has_value());
  EXPECT_EQ(nodes_of(result)->min_nodes, 2);
  EXPECT_EQ(result.spec.workers.size(), 2U);
  EXPECT_THAT(result.hosts, IsEmpty());

  EXPECT_THAT(
      refused(
          two({"--deepspeed_multinode_launcher", "slurm", "--deepspeed_inclusion_filter", "w-1"}))
          .remedy(),
      HasSubstr("--nodelist"));
}

TEST_F(HostPlan, UnderTorchrunsNameItsFlagsAreNamed) {
  host_.is_torchrun = true;
  EXPECT_THAT(refused(two({"--main_process_port", "0"})).message(),
              HasSubstr("--master-port is 0"));
  EXPECT_THAT(refused(two({"--deepspeed_multinode_launcher", "slurm"})).remedy(),
              HasSubstr("accel-torchrun ..."));
}

TEST_F(HostPlan, OneMachineNeedsNoHostfile) {
  const LaunchPlan result =
      plan({"--use_deepspeed", "--num_processes", "1", "--deepspeed_hostfile", hosts_});

  EXPECT_THAT(result.notices, Contains(HasSubstr("--deepspeed_hostfile has no effect")));
  EXPECT_FALSE(result.spec.workers[0].is_starter);
}

TEST_F(HostPlan, TheVariablesOfDeepSpeedsFileGoToTheHosts) {
  folder_.write("home/.deepspeed_env", "MY_KEY=a b\n");

  EXPECT_THAT(text_for(plan(two({"--num_processes", "2"})), 0), HasSubstr("'MY_KEY=a b'"));

  folder_.write("home/.deepspeed_env", "nothing\n");
  EXPECT_THAT(refused(two({"--num_processes", "2"})).message(), HasSubstr(".deepspeed_env:1"));
}

}  // namespace
}  // namespace accel::launcher::host_launch_test
