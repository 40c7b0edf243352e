#include "libaccel/engine/device/device_choice.h"

#include <stdexcept>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <accel/error.h>

#include "libaccel/engine/device/device_backend.h"
#include "tests/support/error_of.h"

namespace accel::device {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

// Devices that note what they are asked.
class NotedDevices final : public DeviceBackend {
 public:
  explicit NotedDevices(int count) : count_(count) {}
  std::vector<std::string> calls;

  [[nodiscard]] c10::DeviceType type() const noexcept override { return c10::DeviceType::CUDA; }
  [[nodiscard]] int count() override {
    calls.emplace_back("count");
    if (count_ == 0)
      throw std::runtime_error("the NVIDIA driver on your system is too old\nframe #0");
    return count_;
  }
  [[nodiscard]] std::string place_of(int index) override { return std::to_string(index); }
  void select(int index) override { calls.push_back("select " + std::to_string(index)); }
  [[nodiscard]] std::string why_no_connection() const override { return {}; }
  [[nodiscard]] c10::intrusive_ptr<c10d::Backend> connect(
      const c10::intrusive_ptr<c10d::Store>& /*store*/, const DeviceRank& /*rank*/) override {
    return {};
  }

 private:
  int count_;
};

LoadDevices loads(NotedDevices& devices) {
  return [&devices]() -> Result<DeviceBackend*> {
    devices.calls.emplace_back("load");
    return static_cast<DeviceBackend*>(&devices);
  };
}

Result<DeviceBackend*> finds_none() {
  return Error(ErrorCode::kLibraryMissing, "libcudart.so.13: cannot open shared object file");
}

Error refusal(const DeviceQuestion& question, const LoadDevices& load) {
  return test::error_of([&] { (void)choose_device(question, load); });
}

TEST(DeviceChoice, LoadsNothingWithoutAGpuOrForTheCpu) {
  NotedDevices devices(2);

  EXPECT_TRUE(choose_device({}, loads(devices)).device.is_cpu());
  EXPECT_TRUE(
      choose_device({.is_for_cpu = true, .visible_gpu = "H100"}, loads(devices)).device.is_cpu());
  EXPECT_TRUE(
      choose_device({.named = "cpu", .visible_gpu = "H100"}, loads(devices)).device.is_cpu());

  EXPECT_THAT(devices.calls, IsEmpty());
}

TEST(DeviceChoice, TakesTheGpuOfTheLocalRankInThisOrder) {
  NotedDevices devices(2);

  const DeviceChoice choice =
      choose_device({.visible_gpu = "NVIDIA H100", .local_rank = 1}, loads(devices));

  EXPECT_EQ(choice.device, c10::Device(c10::kCUDA, 1));
  EXPECT_EQ(choice.backend, &devices);
  EXPECT_THAT(devices.calls, ElementsAre("load", "count", "select 1"));
}

TEST(DeviceChoice, MoreRanksThanGpusShareThemInTurn) {
  NotedDevices devices(2);

  const DeviceChoice choice =
      choose_device({.visible_gpu = "NVIDIA H100", .local_rank = 3}, loads(devices));

  EXPECT_EQ(choice.device.index(), 1);
}

TEST(DeviceChoice, TheNamedGpuCountsWhateverTheRank) {
  NotedDevices devices(2);

  EXPECT_EQ(choose_device({.named = "cuda:0", .local_rank = 1}, loads(devices)).device.index(), 0);
  EXPECT_EQ(choose_device({.named = "cuda", .local_rank = 1}, loads(devices)).device.index(), 1);
}

TEST(DeviceChoice, AGpuThatCannotBeUsedIsAnErrorWithTheReasonAndTheWayToGoOn) {
  const Error error = refusal({.visible_gpu = "NVIDIA H100"}, finds_none);

  EXPECT_EQ(error.code(), ErrorCode::kUnsupported);
  EXPECT_THAT(error.message(), HasSubstr("the first is NVIDIA H100"));
  EXPECT_THAT(error.message(), HasSubstr("libcudart.so.13: cannot open shared object file"));
  EXPECT_THAT(error.remedy(), HasSubstr("--cpu"));
}

TEST(DeviceChoice, ADriverThatIsTooOldIsNamedInItsOwnWords) {
  NotedDevices devices(0);

  const Error error = refusal({.visible_gpu = "NVIDIA H100"}, loads(devices));

  EXPECT_EQ(error.code(), ErrorCode::kUnsupported);
  EXPECT_THAT(error.message(), HasSubstr("the NVIDIA driver on your system is too old"));
  EXPECT_THAT(error.message(), Not(HasSubstr("frame")));
  EXPECT_THAT(error.remedy(), HasSubstr("--cpu"));
}

TEST(DeviceChoice, ANumberAboveTheGpusIsRefused) {
  NotedDevices devices(2);

  const Error error = refusal({.named = "cuda:2"}, loads(devices));

  EXPECT_EQ(error.code(), ErrorCode::kEnvInvalid);
  EXPECT_THAT(error.message(), HasSubstr("sees 2 GPUs"));
}

TEST(DeviceChoice, OtherKindsOfDevicesAreRefusedByName) {
  for (const char* name : {"mps", "xpu:0", "npu", "mlu", "musa", "hpu", "sdaa", "xla", "neuron"}) {
    const Error error = refusal({.named = name}, finds_none);
    EXPECT_EQ(error.code(), ErrorCode::kUnsupported) << name;
    EXPECT_THAT(error.message(), HasSubstr(name));
  }
  EXPECT_EQ(refusal({.named = "toaster"}, finds_none).code(), ErrorCode::kEnvInvalid);
}

TEST(VisibleGpuName, IsThatOfTheFirstGpuThatCudaWouldSee) {
  const NvidiaMachine machine{.driver_version = "580.1", .gpus = {{.name = "NVIDIA H100"}}};

  EXPECT_EQ(visible_gpu_name(machine, {}, "/nowhere"), "NVIDIA H100");
  EXPECT_EQ(visible_gpu_name({}, {}, "/nowhere"), "");
  EXPECT_EQ(visible_gpu_name(machine, {{"CUDA_VISIBLE_DEVICES", ""}}, "/dev/null"), "");
  EXPECT_EQ(visible_gpu_name(machine, {{"CUDA_VISIBLE_DEVICES", "-1"}}, "/dev/null"), "");
}

TEST(VisibleGpuName, ADeviceFileOrAUuidTellsOfAGpuToo) {
  const NvidiaMachine machine{.driver_version = "580.1", .gpus = {{.name = "NVIDIA H100"}}};

  EXPECT_THAT(visible_gpu_name({}, {}, "/dev/null"), HasSubstr("/dev/null"));
  EXPECT_THAT(visible_gpu_name({}, {{"CUDA_VISIBLE_DEVICES", "0"}}, "/dev/null"), Not(IsEmpty()));
  EXPECT_EQ(visible_gpu_name({}, {{"CUDA_VISIBLE_DEVICES", ""}}, "/dev/null"), "");
  EXPECT_EQ(visible_gpu_name(machine, {{"CUDA_VISIBLE_DEVICES", "GPU-1a2b,GPU-3c"}}, "/dev/null"),
            "GPU-1a2b");
}

}  // namespace
}  // namespace accel::device
