// What flags, files and lines of torchrun say about several machines.

#include "launcher/start/machines/settings/machines_request.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "runtime/text/endpoint_text.h"
#include "tests/support/launch_plan_fixture.h"

namespace accel::launcher::machines_request_test {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

class MachinesRequestTest : public test::LaunchPlanFixture {
 protected:
  static Words machines(Words more) {
    Words words = {"--cpu",
                   "--num_machines",
                   "2",
                   "--machine_rank",
                   "1",
                   "--main_process_ip",
                   "10.0.0.1",
                   "--main_process_port",
                   "29601"};
    words.insert(words.end(), more.begin(), more.end());
    return words;
  }
};

TEST_F(MachinesRequestTest, ProcessesAreDividedOverTheMachines) {
  const auto result = plan(machines({"--num_processes", "4"}));
  ASSERT_TRUE(machines_of(result));
  EXPECT_EQ(machines_of(result)->num_machines, 2);
  EXPECT_EQ(machines_of(result)->machine_rank, 1);
  EXPECT_EQ(machines_of(result)->address, "10.0.0.1");
  EXPECT_EQ(machines_of(result)->port, 29601);
  EXPECT_EQ(machines_of(result)->num_processes, 4);
  EXPECT_EQ(result.spec.workers.size(), 2U);
  EXPECT_EQ(result.spec.workers[1].global_rank, 3);
  EXPECT_EQ(result.spec.identity.world_size, 4);
  EXPECT_EQ(result.spec.env_mode, EnvMode::kDistributed);
  EXPECT_FALSE(result.spec.console.stdin_to_rank0);
}

// Whether they divide is found out where the machines meet, so that all of them hear of it.
TEST_F(MachinesRequestTest, ProcessesThatDoNotDivideGoToTheMeeting) {
  EXPECT_EQ(machines_of(plan(machines({"--num_processes", "5"})))->num_processes, 5);
  EXPECT_EQ(plan(machines({"--num_processes", "1"})).spec.workers.size(), 1U);
}

TEST_F(MachinesRequestTest, AddressAndPortAreDemandedInTheWordsOfThePeer) {
  EXPECT_EQ(refused({"--cpu", "--num_machines", "2", "--main_process_port", "1"}).message(),
            "When using multiple machines, you need to specify the main process IP.");
  EXPECT_EQ(refused({"--cpu", "--num_machines", "2", "--main_process_ip", "10.0.0.1"}).message(),
            "When using multiple machines, you need to specify the main process port.");
  num_gpus_ = 2;
  EXPECT_EQ(machines_of(plan({"--multi_gpu",
                              "--num_machines",
                              "2",
                              "--num_processes",
                              "2",
                              "--main_process_ip",
                              "10.0.0.1"}))
                ->port,
            29500);
}

TEST_F(MachinesRequestTest, ARankBeyondTheMachinesAndAnyPortAreRefused) {
  EXPECT_THAT(refused(machines({"--machine_rank", "2"})).message(),
              HasSubstr("--machine_rank is 2, expected 0 to 1 with --num_machines 2"));
  EXPECT_THAT(refused(machines({"--main_process_port", "0"})).message(),
              HasSubstr("the other machines have to know the port"));
}

TEST_F(MachinesRequestTest, WhatOnlyTheCoordinatorHasIsRefused) {
  for (const char* flag : {"--agent", "--standalone"}) {
    EXPECT_EQ(refused(machines({flag})).code(), ErrorCode::kUsage) << flag;
  }
  EXPECT_THAT(refused(machines({"--fencing", "hard"})).message(),
              HasSubstr("--fencing is not for machines that meet without a daemon"));
  EXPECT_THAT(refused(machines({"--rdzv_token_file", "token"})).remedy(),
              HasSubstr("ACCEL_JOB_TOKEN_FILE"));
}

TEST_F(MachinesRequestTest, AFileSaysTheSame) {
  const auto result =
      plan(file("distributed_type: MULTI_CPU\nuse_cpu: true\nnum_machines: 4\nmachine_rank: 2\n"
                "main_process_ip: gpu-01\nmain_process_port: 29700\nnum_processes: 8\n"));
  ASSERT_TRUE(machines_of(result));
  EXPECT_EQ(machines_of(result)->address, "gpu-01");
  EXPECT_EQ(result.spec.workers.size(), 2U);
  EXPECT_EQ(result.spec.workers[0].global_rank, 4);
}

TEST_F(MachinesRequestTest, TheRdzvBackendOfAFileHolds) {
  const auto of_backend = [&](const std::string& backend, const Words& more = {}) {
    Words words = file(
        "distributed_type: MULTI_CPU\nuse_cpu: true\nnum_machines: 4\nmachine_rank: 2\n"
        "main_process_ip: gpu-01\nmain_process_port: 29700\nnum_processes: 8\nrdzv_backend: " +
        backend + "\n");
    words.insert(words.begin(), more.begin(), more.end());
    return words;
  };
  EXPECT_EQ(machines_of(plan(of_backend("static")))->machine_rank, 2);
  EXPECT_EQ(machines_of(plan(of_backend("c10d")))->machine_rank, std::nullopt);
  EXPECT_EQ(machines_of(plan(of_backend("c10d", {"--machine_rank", "1"})))->machine_rank, 1);
  EXPECT_EQ(refused(of_backend("mpi")).message(),
            "rdzv_backend of the configuration file is 'mpi', expected static, c10d, etcd or "
            "etcd-v2");

  const auto by_etcd = machines_of(plan(of_backend("etcd-v2")));
  ASSERT_TRUE(by_etcd && by_etcd->etcd);
  EXPECT_EQ(by_etcd->etcd->endpoint, "gpu-01:29700");
  EXPECT_EQ(by_etcd->machine_rank, std::nullopt);
  EXPECT_EQ(by_etcd->port, 0);
  EXPECT_EQ(by_etcd->num_processes, 8);
}

TEST_F(MachinesRequestTest, EtcdIsAtTheEndpointOrAtTheAddressOfTheMainProcess) {
  const auto endpoint_of = [&](const Words& more) {
    Words words = {"--cpu", "--num_machines", "2", "--rdzv_backend", "etcd"};
    words.insert(words.end(), more.begin(), more.end());
    const auto machines = machines_of(plan(words));
    return machines && machines->etcd ? machines->etcd->endpoint : "none";
  };
  EXPECT_EQ(endpoint_of({"--main_process_ip", "gpu-01"}), "gpu-01:2379");
  EXPECT_EQ(endpoint_of({"--main_process_ip", "gpu-01", "--main_process_port", "79"}), "gpu-01:79");
  EXPECT_EQ(endpoint_of({"--rdzv_endpoint", "[fd00::1]"}), "[fd00::1]:2379");
  EXPECT_EQ(refused({"--cpu", "--num_machines", "2", "--rdzv_backend", "etcd"}).message(),
            "rdzv_backend etcd needs the address of etcd");
}

// As submit_multinode_fsdp.sh of the peer: the flag beats the file, whose rank is of `accelerate config`.
TEST_F(MachinesRequestTest, TheRdzvBackendOfAFlagBeatsThatOfAFile) {
  const auto with = [&](const std::string& more, Words words) {
    const Words of_file =
        file("distributed_type: MULTI_CPU\nuse_cpu: true\nnum_processes: 4\n" + more);
    words.insert(words.end(), of_file.begin(), of_file.end());
    const Words address = {
        "--num_machines=2", "--main_process_ip=10.66.0.1", "--main_process_port=29615"};
    words.insert(words.end(), address.begin(), address.end());
    return machines_of(plan(words))->machine_rank;
  };
  EXPECT_EQ(with("", {"--rdzv_backend", "c10d"}), std::nullopt);
  EXPECT_EQ(with("machine_rank: 0\n", {"--rdzv_backend", "c10d"}), std::nullopt);
  EXPECT_EQ(with("machine_rank: 0\n", {"--rdzv_backend", "c10d", "--machine_rank", "1"}), 1);
  EXPECT_EQ(with("rdzv_backend: c10d\nmachine_rank: 1\n", {"--rdzv_backend", "static"}), 1);
}

TEST_F(MachinesRequestTest, AnAddressMayStandInBrackets) {
  EXPECT_EQ(machines_of(plan(machines({"--main_process_ip", "[fe80::7]"})))->address, "fe80::7");
  EXPECT_EQ(machines_of(plan(machines({"--main_process_ip", "gpu-01"})))->address, "gpu-01");
  EXPECT_EQ(without_brackets("[]"), "[]");
}

TEST_F(MachinesRequestTest, LinesOfTorchrunCountOnEachNode) {
  host_.is_torchrun = true;
  const auto result = plan({"--nnodes",
                            "2",
                            "--node-rank",
                            "1",
                            "--master-addr",
                            "10.0.0.1",
                            "--nproc-per-node",
                            "3",
                            "--rdzv-id",
                            "night"});
  ASSERT_TRUE(machines_of(result));
  EXPECT_EQ(machines_of(result)->machine_rank, 1);
  EXPECT_EQ(machines_of(result)->port, 29500);
  EXPECT_EQ(machines_of(result)->num_processes, 0);
  EXPECT_EQ(machines_of(result)->run_id, "night");
  EXPECT_EQ(result.spec.workers.size(), 3U);
  EXPECT_FALSE(nodes_of(result));
}

TEST_F(MachinesRequestTest, C10dWithAFixedNumberOfNodesTakesTheOrderOfJoins) {
  host_.is_torchrun = true;
  const Words words = {"--nnodes=2", "--rdzv-backend=c10d", "--rdzv-endpoint=[fd00::1]:29400"};
  const auto result = plan(words);
  ASSERT_TRUE(machines_of(result));
  EXPECT_FALSE(machines_of(result)->machine_rank);
  EXPECT_EQ(machines_of(result)->address, "fd00::1");
  EXPECT_EQ(machines_of(result)->port, 29400);

  host_.is_torchrun = false;
  const auto own = plan({"--cpu", "--nnodes=2", "--rdzv_endpoint=gpu-01", "--num_processes=2"});
  ASSERT_TRUE(machines_of(own));
  EXPECT_EQ(machines_of(own)->address, "gpu-01");
  EXPECT_EQ(machines_of(own)->port, 29500);
  EXPECT_EQ(machines_of(own)->num_processes, 2);  // of both
  EXPECT_EQ(own.spec.workers.size(), 1U);
}

TEST_F(MachinesRequestTest, ARangeOfNodesStaysWithTheCoordinator) {
  host_.is_torchrun = true;
  const Words words = {"--nnodes=2:4", "--rdzv-backend=c10d", "--rdzv-endpoint=10.0.0.1:29400"};
  const auto open = nodes_of(plan(words));
  ASSERT_TRUE(open);
  EXPECT_TRUE(open->insecure);
  EXPECT_EQ(open->token_file, "");
  EXPECT_EQ(open->max_nodes, 4);
  for (const char* more : {"--strict", "--rdzv-insecure", "--fencing=hard", "--rdzv-tls-dir=tls"}) {
    Words guarded = words;
    guarded.emplace_back(more);
    const Error refusal = refused(guarded);
    EXPECT_THAT(refusal.message(), HasSubstr("needs --rdzv-token-file")) << more;
    EXPECT_THAT(refusal.remedy(), Not(HasSubstr("c10d"))) << more;
  }
}

TEST_F(MachinesRequestTest, ARangeOfNodesMeetsThroughC10dAndNeedsNoKeyForIt) {
  const Words words = {"--nnodes", "2:4", "--rdzv_endpoint", "10.0.0.1:29400"};
  EXPECT_THAT(refused(words).remedy(),
              HasSubstr("or give --rdzv_backend c10d, which has no authentication"));
  host_.is_torchrun = true;
  for (const Words& line : {words, Words{"--nnodes=2:4", "--master-addr=10.0.0.1"}}) {
    const Error refusal = refused(line);
    EXPECT_THAT(refusal.message(), HasSubstr("--nnodes 2:4 is a range"));
    EXPECT_EQ(refusal.remedy(), "give --rdzv-backend c10d with --rdzv-endpoint");
    EXPECT_TRUE(refusal.details().empty()) << refusal.render("accel-torchrun");
  }
}

TEST_F(MachinesRequestTest, AnAllocationOfSlurmIsUsedUnlessAnAddressIsGiven) {
  host_.is_torchrun = true;
  host_.environment.insert({{"SLURM_JOB_ID", "7"},
                            {"SLURM_JOB_NUM_NODES", "2"},
                            {"SLURM_NNODES", "2"},
                            {"SLURM_JOB_NODELIST", "gpu-[01-02]"}});
  const auto result =
      plan({"--nnodes=2", "--node-rank=0", "--master-addr=gpu-01", "--master-port=29500"});
  EXPECT_TRUE(machines_of(result));
  EXPECT_FALSE(nodes_of(result));
}

}  // namespace
}  // namespace accel::launcher::machines_request_test
