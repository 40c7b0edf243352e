#include <algorithm>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "launcher/start/mpi/mpi_launch.h"
#include "tests/support/launch_plan_fixture.h"

namespace accel::launcher::mpi_hosts_test {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Key;
using ::testing::Not;
using ::testing::Pair;

const MpiProgram kHydra{"mpiexec", MpiFamily::kHydra};
const MpiProgram kOpen{"mpirun", MpiFamily::kOpenMpi};

class MpiHostsPlan : public test::LaunchPlanFixture {
 protected:
  MpiHostsPlan() {
    hosts_ = folder_.write("hosts", "w-1 slots=4\nw-2 slots=4\nw-3 slots=2\n");
    host_.mpi_program = [this] { return Result<MpiProgram>(program_of_mpi_); };
  }
  Words by(const std::string& launcher, Words more, const std::string& machines = "2") {
    Words words = {"--use_deepspeed",
                   "--num_machines",
                   machines,
                   "--deepspeed_hostfile",
                   hosts_,
                   "--deepspeed_multinode_launcher",
                   launcher};
    words.insert(words.end(), more.begin(), more.end());
    return words;
  }
  MpiProgram program_of_mpi_ = kOpen;
  std::string hosts_;
};

TEST_F(MpiHostsPlan, OpenMpiStartsARankForEachSlotThatIsTaken) {
  const LaunchPlan result =
      plan(by("openmpi", {"--deepspeed_inclusion_filter", "w-1:1,3@w-2:1,3"}));

  ASSERT_EQ(result.spec.workers.size(), 1U);
  const Words& words = result.spec.workers[0].argv;
  EXPECT_EQ(Words(words.begin(), words.begin() + 11),
            (Words{"mpirun",
                   "--host",
                   "w-1:2,w-2:2",
                   "-n",
                   "4",
                   "--map-by",
                   "slot",
                   "--bind-to",
                   "none",
                   "/bin/sh",
                   "-c"}));
  EXPECT_EQ(Words(words.begin() + 12, words.end()), (Words{"mpirun", program_}));
  EXPECT_THAT(result.spec.env,
              AllOf(Contains(Pair("CUDA_VISIBLE_DEVICES", "1,3")),
                    Contains(Pair("MASTER_ADDR", "w-1")),
                    Contains(Pair("MASTER_PORT", "29500")),
                    Contains(Pair("ACCELERATE_USE_DEEPSPEED", "true"))));
  EXPECT_EQ(result.spec.env_mode, EnvMode::kSimple);
  EXPECT_FALSE(result.spec.store.enabled);
  EXPECT_THAT(result.worker_names, ElementsAre("mpirun"));
}

TEST_F(MpiHostsPlan, HydraGetsHostsAndRanksOfEach) {
  program_of_mpi_ = kHydra;
  for (const std::string launcher : {"mpich", "mvapich"}) {
    const LaunchPlan result =
        plan(by(launcher, {"--num_processes", "6", "--main_process_ip", "10.0.0.1"}, "3"));

    const Words& words = result.spec.workers.at(0).argv;
    EXPECT_EQ(Words(words.begin(), words.begin() + 9),
              (Words{"mpiexec", "-hosts", "w-1,w-2,w-3", "-ppn", "2", "-n", "6", "/bin/sh", "-c"}));
    EXPECT_THAT(words[9], HasSubstr("WORLD_SIZE=6 LOCAL_WORLD_SIZE=2"));
    EXPECT_THAT(result.spec.env,
                AllOf(Contains(Pair("CUDA_VISIBLE_DEVICES", "0,1")),
                      Contains(Pair("MASTER_ADDR", "10.0.0.1")),
                      Contains(Pair("MV2_ENABLE_AFFINITY", "0")),
                      Not(Contains(Key("OMPI_MCA_mca_base_env_list")))));
  }
}

TEST_F(MpiHostsPlan, OtherHostsOfOpenMpiGetWhatDeepSpeedExports) {
  folder_.write("home/.deepspeed_env", "MY_KEY=a b\n");
  host_.environment["NCCL_DEBUG"] = "INFO";
  host_.environment["SECRET"] = "kept";
  host_.environment["MV2_DEBUG"] = "1";
  const LaunchPlan result = plan(by("openmpi", {"--num_processes", "3"}, "3"));

  EXPECT_EQ(result.spec.env.at("MY_KEY"), "a b");
  EXPECT_THAT(";" + result.spec.env.at("OMPI_MCA_mca_base_env_list") + ";",
              AllOf(HasSubstr(";MY_KEY;"),
                    HasSubstr(";NCCL_DEBUG;"),
                    HasSubstr(";CUDA_VISIBLE_DEVICES;"),
                    HasSubstr(";MASTER_ADDR;"),
                    HasSubstr(";PATH;"),
                    Not(HasSubstr(";HOME;")),
                    Not(HasSubstr("SECRET"))));
}

TEST_F(MpiHostsPlan, WhatTheUserSetForHydraStays) {
  program_of_mpi_ = kHydra;
  host_.environment["MV2_ENABLE_AFFINITY"] = "1";

  EXPECT_EQ(plan(by("mvapich", {"--num_processes", "3"}, "3")).spec.env.at("MV2_ENABLE_AFFINITY"),
            "1");
}

TEST_F(MpiHostsPlan, TheOtherMpirunIsRefused) {
  EXPECT_THAT(refused(by("mpich", {"--num_processes", "3"}, "3")).message(),
              HasSubstr("is mpich, but the mpirun on PATH is Open MPI"));
  program_of_mpi_ = kHydra;
  EXPECT_THAT(refused(by("openmpi", {"--num_processes", "3"}, "3")).remedy(),
              HasSubstr("--deepspeed_multinode_launcher mpich"));
}

// Programs of their own to mpirun, and one job.
TEST_F(MpiHostsPlan, HostsWithDifferentSlotsHaveRanksOfTheirOwnNumber) {
  const Words filter = {"--deepspeed_inclusion_filter", "w-1:1,3@w-2:0"};
  const LaunchPlan open = plan(by("openmpi", filter));
  const Words& words = open.spec.workers.at(0).argv;
  const auto colon = std::ranges::find(words, ":");

  EXPECT_EQ(Words(words.begin(), words.begin() + 11),
            (Words{"mpirun",
                   "--map-by",
                   "slot",
                   "--bind-to",
                   "none",
                   "--host",
                   "w-1:2",
                   "-n",
                   "2",
                   "/bin/sh",
                   "-c"}));
  EXPECT_THAT(words[11], HasSubstr("WORLD_SIZE=3 LOCAL_WORLD_SIZE=2 CUDA_VISIBLE_DEVICES=1,3;"));
  EXPECT_EQ(Words(words.begin() + 12, colon), (Words{"mpirun", program_}));
  EXPECT_EQ(Words(colon, colon + 7), (Words{":", "--host", "w-2:1", "-n", "1", "/bin/sh", "-c"}));
  EXPECT_THAT(colon[7], HasSubstr("WORLD_SIZE=3 LOCAL_WORLD_SIZE=1 CUDA_VISIBLE_DEVICES=0;"));
  EXPECT_EQ(Words(colon + 8, words.end()), (Words{"mpirun", program_}));
  EXPECT_THAT(open.spec.env, Not(Contains(Key("CUDA_VISIBLE_DEVICES"))));

  program_of_mpi_ = kHydra;
  const Words hydra = plan(by("mpich", filter)).spec.workers.at(0).argv;
  EXPECT_EQ(Words(hydra.begin(), hydra.begin() + 5), (Words{"mpiexec", "-host", "w-1", "-n", "2"}));
  const auto second = std::ranges::find(hydra, ":");
  EXPECT_EQ(Words(second, second + 5), (Words{":", "-host", "w-2", "-n", "1"}));
}

TEST_F(MpiHostsPlan, AHostfileIsNeeded) {
  EXPECT_THAT(refused({"--use_deepspeed",
                       "--num_machines",
                       "2",
                       "--num_processes",
                       "2",
                       "--deepspeed_multinode_launcher",
                       "openmpi"})
                  .message(),
              HasSubstr("needs a hostfile"));
}

}  // namespace
}  // namespace accel::launcher::mpi_hosts_test
