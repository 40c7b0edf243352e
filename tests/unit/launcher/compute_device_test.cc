#include "launcher/workers/compute_device.h"

#include <gtest/gtest.h>

#include "tests/support/launch_plan_fixture.h"

namespace accel::launcher::compute_device_test {
namespace {

class ComputeDeviceTest : public test::LaunchPlanFixture {
 protected:
  ComputeDeviceTest() { host_.environment["CUDA_VISIBLE_DEVICES"] = ""; }

  // What the launcher of a machine tells the others.
  ComputeDevice told(Words more = {}) {
    Words words = {"--num_machines", "2", "--num_processes", "2", "--main_process_ip", "10.0.0.1"};
    words.insert(words.end(), {"--main_process_port", "29500"});
    words.insert(words.end(), more.begin(), more.end());
    return machines_of(plan(std::move(words)))->device;
  }
};

TEST_F(ComputeDeviceTest, IsTheGpuWhereOneIsVisible) {
  num_gpus_ = 1;
  EXPECT_EQ(told(), ComputeDevice::kGpu);
  EXPECT_EQ(told({"--cpu"}), ComputeDevice::kCpu);
}

TEST_F(ComputeDeviceTest, IsTheCpuWhereNoneIs) {
  EXPECT_EQ(told(), ComputeDevice::kCpu);
  EXPECT_EQ(told({"--use_deepspeed"}), ComputeDevice::kCpu);
}

TEST_F(ComputeDeviceTest, IsNotSaidOfProgramsThatChoose) {
  EXPECT_EQ(told({"--strict_compat"}), ComputeDevice::kUnsaid);
  num_gpus_ = 1;
  EXPECT_EQ(told({"--strict_compat"}), ComputeDevice::kUnsaid);
  host_.is_torchrun = true;
  EXPECT_EQ(machines_of(plan({"--nnodes=2", "--master_addr=10.0.0.1"}))->device,
            ComputeDevice::kUnsaid);
}

}  // namespace
}  // namespace accel::launcher::compute_device_test
