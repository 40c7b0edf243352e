#include "launcher/devices/other_devices.h"

#include <gtest/gtest.h>

namespace accel::launcher::other_devices_test {
namespace {

TEST(OtherDevices, AreKnownByTheirFiles) {
  for (const char* entry :
       {"kfd", "dxg", "nvhost-gpu", "davinci0", "accel0", "accel/accel1", "neuron15"})
    EXPECT_TRUE(is_other_device(entry, {})) << entry;
  for (const char* entry :
       {"null", "nvidia0", "davinci_manager", "neuron", "hlx", "accel", "accel/", "tty0"})
    EXPECT_FALSE(is_other_device(entry, {})) << entry;
}

TEST(OtherDevices, AreHiddenAsCudaAndHipHideThem) {
  EXPECT_FALSE(is_other_device("kfd", {{"CUDA_VISIBLE_DEVICES", ""}}));
  EXPECT_FALSE(is_other_device("dxg", {{"CUDA_VISIBLE_DEVICES", "-1"}}));
  EXPECT_TRUE(is_other_device("kfd", {{"CUDA_VISIBLE_DEVICES", "0"}}));
  EXPECT_TRUE(is_other_device("davinci0", {{"CUDA_VISIBLE_DEVICES", ""}}));
}

TEST(OtherDevices, AnIntelGpuInsideTheProcessorIsNone) {
  EXPECT_FALSE(is_discrete_intel_gpu("0x8086", "0000:00:02.0"));
  EXPECT_TRUE(is_discrete_intel_gpu("0x8086", "0000:3a:00.0"));
  EXPECT_FALSE(is_discrete_intel_gpu("0x1a03", "0000:3a:00.0"));
}

TEST(OtherDevices, TheUnitForNetworksInsideAProcessorIsNone) {
  EXPECT_TRUE(is_npu_of_processor("0x8086"));
  EXPECT_TRUE(is_npu_of_processor("0x1022"));
  EXPECT_FALSE(is_npu_of_processor("0x1da3"));  // Gaudi
  EXPECT_FALSE(is_npu_of_processor(""));
}

}  // namespace
}  // namespace accel::launcher::other_devices_test
