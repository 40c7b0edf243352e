#include "launcher/plan/cpu_fallback.h"

#include <algorithm>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/launch_plan_fixture.h"

namespace accel::launcher::cpu_fallback_test {
namespace {

using ::testing::HasSubstr;

class CpuFallback : public test::LaunchPlanFixture {
 protected:
  CpuFallback() { host_.environment["CUDA_VISIBLE_DEVICES"] = ""; }

  // What the workers are told; "unset" when nothing.
  std::string told(Words words) {
    const LaunchPlan result = plan(std::move(words));
    is_noted_ = std::ranges::any_of(result.notices, [](const std::string& notice) {
      return notice.starts_with("no GPU is visible");
    });
    const auto found = result.spec.env.find("ACCELERATE_USE_CPU");
    return found == result.spec.env.end() ? "unset" : found->second;
  }

  bool is_noted_ = false;
};

TEST_F(CpuFallback, SeveralWorkersWithoutAnyGpuAreOneJobOnTheCpu) {
  EXPECT_EQ(told({"--num_processes", "2"}), "True");
  EXPECT_TRUE(is_noted_);
  EXPECT_EQ(told({"--num_processes", "2", "--use_fsdp"}), "True");
  EXPECT_TRUE(is_noted_);
  EXPECT_EQ(told({"--num_processes",
                  "2",
                  "--num_machines",
                  "2",
                  "--main_process_ip",
                  "10.0.0.1",
                  "--main_process_port",
                  "29500"}),
            "True");
  EXPECT_TRUE(is_noted_);
}

TEST_F(CpuFallback, OneWorkerLooksForItself) {
  EXPECT_EQ(told({"--num_processes", "1"}), "False");
  EXPECT_FALSE(is_noted_);
}

TEST_F(CpuFallback, WhoSaidCpuIsNotTold) {
  EXPECT_EQ(told({"--cpu", "--num_processes", "2"}), "True");
  EXPECT_FALSE(is_noted_);
}

TEST_F(CpuFallback, DevicesAreUsed) {
  num_gpus_ = 2;
  EXPECT_EQ(told({"--num_processes", "2"}), "unset");
  EXPECT_FALSE(is_noted_);
}

TEST_F(CpuFallback, GpusThatWereNamedMustBeThere) {
  const Error named = refused({"--num_processes", "2", "--gpu_ids", "0,1"});
  EXPECT_EQ(named.code(), ErrorCode::kUnsupported);
  EXPECT_EQ(named.message(), "--gpu_ids is 0,1, but no GPU is visible");
  EXPECT_THAT(named.remedy(), HasSubstr("--cpu"));
  EXPECT_THAT(refused(file("distributed_type: FSDP\nnum_processes: 2\ngpu_ids: 2,3\n")).message(),
              HasSubstr("2,3, but no GPU"));
  EXPECT_EQ(told({"--num_processes", "2", "--gpu_ids", "0,1", "--cpu"}), "True");
  EXPECT_EQ(told({"--num_processes", "2", "--gpu_ids", "all"}), "True");
  EXPECT_EQ(told({"--num_processes", "1", "--gpu_ids", "0"}), "False");
}

TEST_F(CpuFallback, SettingsStayWhereADeviceOfAnotherMakerIs) {
  LaunchSettings settings;
  settings.num_processes = 2;

  EXPECT_FALSE(falls_back_to_cpu({}, settings, [] { return true; }));
  EXPECT_TRUE(falls_back_to_cpu({}, settings, [] { return false; }));
}

TEST_F(CpuFallback, ThePeersEnvironmentIsThatOfThePeer) {
  EXPECT_EQ(told({"--strict_compat", "--num_processes", "2"}), "False");
  EXPECT_EQ(told({"--strict_compat", "--num_processes", "2", "--use_fsdp"}), "unset");
  host_.is_torchrun = true;
  EXPECT_EQ(told({"--nproc_per_node", "2"}), "unset");
  EXPECT_FALSE(is_noted_);
}

TEST_F(CpuFallback, DeepSpeedChoosesItsDevice) {
  EXPECT_EQ(told({"--use_deepspeed", "--num_processes", "2"}), "unset");
  EXPECT_FALSE(is_noted_);
}

}  // namespace
}  // namespace accel::launcher::cpu_fallback_test
