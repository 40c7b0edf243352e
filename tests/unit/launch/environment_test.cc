// The helpers of accelerate.utils: guards of the environment, a first configuration, cores near a GPU.

#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <accel/environment.h>
#include <accel/error.h>

#include "libaccel/launch/basic_config.h"
#include "libaccel/launch/numa_affinity.h"
#include "runtime/own_environment.h"
#include "tests/support/scratch_folder.h"

namespace accel::environment_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

std::string variable(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "unset" : value;
}

TEST(PurgeAccelerateEnvironment, PutsBackWhatBeginsWithAccelerateAndNothingElse) {
  ::setenv("ACCELERATE_TEST_KEPT", "before", 1);
  {
    const auto purged = purge_accelerate_environment();
    EXPECT_EQ(variable("ACCELERATE_TEST_KEPT"), "before");
    ::setenv("ACCELERATE_TEST_KEPT", "after", 1);
    ::setenv("ACCELERATE_TEST_NEW", "1", 1);
    ::setenv("ACCEL_TEST_OTHER", "1", 1);
  }
  EXPECT_EQ(variable("ACCELERATE_TEST_KEPT"), "before");
  EXPECT_EQ(variable("ACCELERATE_TEST_NEW"), "unset");
  EXPECT_EQ(variable("ACCEL_TEST_OTHER"), "1");
  ::unsetenv("ACCELERATE_TEST_KEPT");
  ::unsetenv("ACCEL_TEST_OTHER");
}

TEST(PatchEnvironment, LastsAsLongAsItsGuard) {
  ::setenv("ACCEL_TEST_KEPT", "before", 1);
  ::unsetenv("ACCEL_TEST_NEW");
  {
    const auto patched =
        patch_environment({{"accel_test_kept", "during"}, {"Accel_Test_New", "1"}});
    EXPECT_EQ(variable("ACCEL_TEST_KEPT"), "during");
    EXPECT_EQ(variable("ACCEL_TEST_NEW"), "1");
    EXPECT_EQ(variable("accel_test_kept"), "unset");
  }
  EXPECT_EQ(variable("ACCEL_TEST_KEPT"), "before");
  EXPECT_EQ(variable("ACCEL_TEST_NEW"), "unset");
}

TEST(PatchEnvironment, MovedGuardRestoresOnce) {
  ::setenv("ACCEL_TEST_KEPT", "before", 1);
  {
    auto first = patch_environment({{"ACCEL_TEST_KEPT", "during"}});
    const auto second = std::move(first);
    EXPECT_EQ(variable("ACCEL_TEST_KEPT"), "during");
  }
  EXPECT_EQ(variable("ACCEL_TEST_KEPT"), "before");
}

TEST(PatchEnvironment, RefusesWhatIsNoNameAndSetsNothing) {
  EXPECT_THROW((void)patch_environment({{"ACCEL_TEST_A", "1"}, {"B=C", "2"}}), Error);
  EXPECT_THROW((void)patch_environment({{"", "2"}}), Error);
  EXPECT_EQ(variable("ACCEL_TEST_A"), "unset");
}

TEST(ClearEnvironment, LeavesNothingAndBringsAllBack) {
  ::setenv("ACCEL_TEST_KEPT", "before", 1);
  const EnvMap before = own_environment();
  {
    const auto cleared = clear_environment();
    EXPECT_THAT(own_environment(), IsEmpty());
    ::setenv("ACCEL_TEST_ADDED", "1", 1);
    ::setenv("ACCEL_TEST_KEPT", "changed", 1);
  }
  EXPECT_EQ(own_environment(), before);
}

// As accelerate 1.15.0 writes it on a machine without GPUs.
constexpr const char* kPeersText = R"({
  "compute_environment": "LOCAL_MACHINE",
  "debug": false,
  "distributed_type": "NO",
  "downcast_bf16": false,
  "enable_cpu_affinity": false,
  "machine_rank": 0,
  "main_training_function": "main",
  "mixed_precision": "bf16",
  "num_machines": 1,
  "num_processes": 1,
  "rdzv_backend": "static",
  "same_network": false,
  "tpu_use_cluster": false,
  "tpu_use_sudo": false,
  "use_cpu": true
}
)";

TEST(BasicConfig, IsThePeersToTheByte) {
  EXPECT_EQ(launch::basic_config_text("bf16", 0), kPeersText);
}

TEST(BasicConfig, CountsGpus) {
  EXPECT_THAT(launch::basic_config_text("no", 4), HasSubstr("\"distributed_type\": \"MULTI_GPU\""));
  EXPECT_THAT(launch::basic_config_text("no", 4), HasSubstr("\"num_processes\": 4"));
  EXPECT_THAT(launch::basic_config_text("no", 1), HasSubstr("\"distributed_type\": \"NO\""));
  EXPECT_THAT(launch::basic_config_text("no", 1), HasSubstr("\"use_cpu\": false"));
}

TEST(BasicConfig, IsWrittenOnceAndInNewFolders) {
  const test::ScratchFolder folder;
  const std::string path = folder.file("new/folder/config.yaml");

  EXPECT_EQ(write_basic_config("BF16", path), path);
  EXPECT_EQ(write_basic_config("no", path), std::nullopt);
  EXPECT_THROW((void)write_basic_config("fp32", path), Error);
  EXPECT_THROW((void)write_basic_config("no", path + "/below"), Error);
}

Topology two_nodes() {
  return or_throw(synthetic_topology("package:2 [numa] core:4 pu:1"));
}

// A limit of the length of files is a disk that is full.
TEST(BasicConfig, LeavesNothingWhereItCannotBeWritten) {
  const test::ScratchFolder folder;
  rlimit before = {};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  const auto old_action = std::signal(SIGXFSZ, SIG_IGN);
  const rlimit none = {0, before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &none), 0);

  EXPECT_THROW((void)write_basic_config("no", folder.file("config.yaml")), Error);

  ::setrlimit(RLIMIT_FSIZE, &before);
  std::signal(SIGXFSZ, old_action);
  EXPECT_FALSE(std::filesystem::exists(folder.file("config.yaml")));
  EXPECT_TRUE(write_basic_config("no", folder.file("config.yaml")));
}

TEST(NumaAffinity, WithoutGpusRanksShareTheMemoryNodes) {
  const auto near = [](int rank) {
    return launch::cores_near({.local_rank = rank, .local_world_size = 2, .topology = two_nodes()});
  };
  EXPECT_THAT(near(0), ElementsAre(0, 1, 2, 3));
  EXPECT_THAT(near(1), ElementsAre(4, 5, 6, 7));
}

TEST(NumaAffinity, FollowsTheGpuAndWhatIsGranted) {
  NvidiaMachine gpus = {.gpus = {{.name = "a", .cpus = {4, 5, 6, 7, 99}},
                                 {.name = "b", .cpus = {0, 1}},
                                 {.name = "c"}}};
  const auto near = [&](int rank, EnvMap environment = {}) {
    return launch::cores_near({.local_rank = rank,
                               .local_world_size = 3,
                               .gpus = gpus,
                               .environment = std::move(environment),
                               .topology = two_nodes()});
  };
  EXPECT_THAT(near(0), ElementsAre(4, 5, 6, 7));
  EXPECT_THAT(near(1), ElementsAre(0, 1));
  EXPECT_THAT(near(2), IsEmpty());
  EXPECT_THAT(near(0, {{"CUDA_VISIBLE_DEVICES", "1"}}), ElementsAre(0, 1));
}

TEST(NumaAffinity, BindsThisProcessToCoresThatItHas) {
  EXPECT_NO_THROW(set_numa_affinity(0, false));
  EXPECT_THROW(set_numa_affinity(-1), Error);
  EXPECT_GE(or_throw(read_topology()).cores.size(), 1U);
}

}  // namespace
}  // namespace accel::environment_test
