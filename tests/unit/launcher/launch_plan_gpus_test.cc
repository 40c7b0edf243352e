#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "launcher/plan/launch_plan.h"
#include "tests/support/launch_plan_fixture.h"

namespace accel::launcher::launch_plan_gpus_test {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::Key;
using ::testing::Not;

using LaunchPlanGpus = test::LaunchLineFixture;

TEST_F(LaunchPlanGpus, TheGpusOfAConfigurationMustBeThere) {
  const std::string config =
      folder_.write("c.yaml", "distributed_type: MULTI_GPU\nnum_processes: 2\n");
  EXPECT_EQ(refused({"--config_file", config, program_}).code(), ErrorCode::kUnsupported);

  num_gpus_ = 2;
  const LaunchPlan on_gpus = plan({"--config_file", config, "--gpu_ids", "0,1", program_});
  EXPECT_EQ(on_gpus.spec.env.at("CUDA_VISIBLE_DEVICES"), "0,1");
  EXPECT_EQ(on_gpus.spec.env.count("ACCELERATE_USE_CPU"), 0u);
}

TEST_F(LaunchPlanGpus, MultiGpuNeedsTwoProcessesAndTheGpus) {
  EXPECT_THAT(refused({"--multi_gpu", "--num_processes", "1", program_}).message(),
              HasSubstr("You need to use at least 2 processes to use `--multi_gpu`."));
  const Error no_gpu = refused({"--multi_gpu", "--num_processes", "2", program_});
  EXPECT_EQ(no_gpu.code(), ErrorCode::kUnsupported);
  EXPECT_THAT(no_gpu.remedy(), HasSubstr("--cpu in place of --multi_gpu"));
  EXPECT_EQ(refused({"--multi_gpu", "--cpu", program_}).code(), ErrorCode::kUsage);
  EXPECT_EQ(plan({"--cpu", "--num_processes", "2", program_}).spec.identity.world_size, 2);
}

TEST_F(LaunchPlanGpus, ConsumerGpusAreKeptApartWithOneNotice) {
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

TEST_F(LaunchPlanGpus, GpuForTwoWorkersIsAskedForByNamingItTwice) {
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

TEST_F(LaunchPlanGpus, GpusAreNamedAsPeopleTypeThem) {
  EXPECT_EQ(plan({"--gpu_ids", " 0, 1 ", program_}).spec.env.at("CUDA_VISIBLE_DEVICES"), "0,1");
  EXPECT_EQ(plan({"--gpu_ids", "MIG-GPU-8f/1/0", program_}).spec.env.at("CUDA_VISIBLE_DEVICES"),
            "MIG-GPU-8f/1/0");
}

TEST_F(LaunchPlanGpus, OneGpuIsForOneWorkerHoweverTheyWereAskedFor) {
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
                                   "4",
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

}  // namespace
}  // namespace accel::launcher::launch_plan_gpus_test
