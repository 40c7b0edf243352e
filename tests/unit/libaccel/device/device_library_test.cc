// The loader's side, with a library of devices that has none (support/fake_devices.cc), and with libaccel_cuda.so itself.

#include "libaccel/engine/device/device_library.h"

#include <cstdlib>
#include <filesystem>
#include <string>

#include <ATen/ops/ones.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>

#include <accel/accelerator.h>
#include <accel/error.h>
#include <accel/operations.h>
#include <accel/random.h>
#include <accel/state.h>

#include "libaccel/engine/device/device_backend.h"
#include "tests/support/error_of.h"
#include "tests/support/rank_group.h"

namespace accel::device {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

std::string fake_library() {
  return std::string(std::getenv("ACCEL_BUILD_DIR")) + "/tests/libaccel_fake_devices.so";
}

// Of ranks that look for devices.
test::RankGroupOptions with_fakes(std::map<std::string, std::string> more = {}) {
  more["ACCEL_DEVICE_LIBRARY"] = fake_library();
  more["ACCELERATE_TORCH_DEVICE"] = "cuda";
  return {.env = std::move(more), .expect_success = false};
}

TEST(DeviceLibrary, IsTheOneOfTheVariableOrBesideLibaccel) {
  EXPECT_EQ(device_library_path([](std::string_view) { return std::string("/x/y.so"); }),
            "/x/y.so");
  EXPECT_EQ(device_library_path([](std::string_view) { return std::nullopt; }).filename(),
            "libaccel_cuda.so");
}

TEST(DeviceLibrary, ThatIsNotThereOrNoLibraryIsSaidInTheLoadersWords) {
  const auto missing = load_device_backend("/nowhere/libaccel_cuda.so");
  const auto no_library = load_device_backend("/proc/version");

  EXPECT_THAT(missing.error().message(), HasSubstr("there is no /nowhere/libaccel_cuda.so"));
  EXPECT_THAT(no_library.error().message(), HasSubstr("/proc/version"));
}

TEST(DeviceLibrary, OfAnotherVersionOrOfNoneIsRefused) {
  ::setenv("ACCEL_FAKE_INTERFACE", "77", 1);
  const auto other = load_device_backend(fake_library());
  ::unsetenv("ACCEL_FAKE_INTERFACE");
  const auto stranger = load_device_backend("/lib/x86_64-linux-gnu/libm.so.6");

  EXPECT_EQ(other.error().code(), ErrorCode::kUnsupported);
  EXPECT_THAT(other.error().message(), HasSubstr("its interface is 77"));
  EXPECT_THAT(stranger.error().message(), HasSubstr("no library of devices"));
  EXPECT_TRUE(load_device_backend(fake_library()).has_value());
}

// On a machine without NVIDIA's libraries the loader names the one that is missing; with them the driver says why there is no GPU.
TEST(DeviceLibrary, OfCudaSaysWhatIsMissing) {
  const std::string library =
      std::string(std::getenv("ACCEL_BUILD_DIR")) + "/libaccel/libaccel_cuda.so";
  if (!std::filesystem::exists(library)) GTEST_SKIP() << "built without CUDA";
  if (std::filesystem::exists("/dev/nvidiactl")) GTEST_SKIP() << "there is a GPU";
  test::run_ranks(
      1,
      [] {
        const Error error = test::error_of([] { PartialState(); });
        EXPECT_EQ(error.code(), ErrorCode::kUnsupported);
        EXPECT_THAT(error.message(), HasSubstr("ACCELERATE_TORCH_DEVICE asks for cuda, and "));
        EXPECT_THAT(error.message(),
                    ::testing::AnyOf(HasSubstr(".so"), HasSubstr("NVIDIA"), HasSubstr("CUDA")));
        EXPECT_THAT(error.remedy(), HasSubstr("--cpu"));
      },
      {.env = {{"ACCELERATE_TORCH_DEVICE", "cuda"}, {"ACCEL_DEVICE_LIBRARY", library}}});
}

// Trains two steps and prints the parameters, which are those of one process with both batches.
void train_two_steps() {
  Accelerator accelerator(
      {.ddp = {.gradient_as_bucket_view = false}});  // c10d's reducer, as on a GPU
  set_seed(accelerator.process_index() + 1);         // rank 0 gives its model to the other
  torch::nn::Linear net(4, 2);
  torch::optim::SGD sgd(net->parameters(), 0.1);
  auto [model, optimizer] = accelerator.prepare(net, sgd);
  for (int step = 0; step < 2; ++step) {
    const auto input = at::ones({3, 4}) * (accelerator.process_index() + 1);
    accelerator.backward(model(input).square().mean());
    optimizer.step();
    optimizer.zero_grad();
  }
  const at::Tensor sum = gather(net->weight.detach().sum().unsqueeze(0));
  accelerator.print(
      "weights", sum[0].item<double>(), sum[1].item<double>(), "by", PartialState().backend());
}

std::string line_with(const std::string& text, const std::string& word) {
  const auto begin = text.find(word);
  return begin == std::string::npos ? "" : text.substr(begin, text.find('\n', begin) - begin);
}

TEST(DevicesOfTwoRanks, ShareOneByCopiesInHostMemoryWithTheSameNumbers) {
  const auto plain = test::run_ranks(2, train_two_steps, {.expect_success = false});
  const auto shared = test::run_ranks(2, train_two_steps, with_fakes());

  ASSERT_EQ(plain[0].status, 0) << plain[0].output;
  ASSERT_EQ(shared[0].status, 0) << shared[0].output;
  EXPECT_THAT(line_with(plain[0].output, "weights"), HasSubstr("by shm"));
  EXPECT_EQ(line_with(shared[0].output, "weights"), line_with(plain[0].output, "weights"));
  EXPECT_THAT(shared[0].output,
              AllOf(HasSubstr("ranks 0 and 1 share a GPU, which NCCL refuses: gradients go through "
                              "the memory of the host"),
                    HasSubstr("fake: count\nfake: select 0\n"),
                    Not(HasSubstr("fake: connect"))));
}

TEST(DevicesOfTwoRanks, OfTheirOwnAreConnectedByTheLibrary) {
  const auto exits = test::run_ranks(
      2, [] { PartialState(); }, with_fakes({{"ACCEL_FAKE_DEVICES", "2"}}));

  EXPECT_NE(exits[1].status, 0);
  EXPECT_THAT(
      exits[1].output,
      AllOf(
          HasSubstr("fake: select 1"),
          HasSubstr("fake: connect 1 of 2 by 1"),
          HasSubstr("connecting the ranks' GPUs failed on rank 1 of 2: the fake connects nobody")));
}

TEST(DevicesOfTwoRanks, WithoutLinksAreNamedWithTheReason) {
  const auto exits = test::run_ranks(
      2,
      [] { PartialState().wait_for_everyone(); },
      with_fakes({{"ACCEL_FAKE_DEVICES", "2"}, {"ACCEL_FAKE_NO_CONNECTION", "1"}}));

  EXPECT_EQ(exits[0].status, 0) << exits[0].output;
  EXPECT_THAT(exits[0].output, HasSubstr("rank 0: the fake has no links: gradients go through"));
}

TEST(DevicesOfTwoRanks, ThatShareOneCannotHaveNccl) {
  const auto exits = test::run_ranks(
      2,
      [] {
        PartialStateOptions options;
        options.init_process_group.backend = "nccl";
        const Error error = test::error_of([&] { PartialState state(options); });
        EXPECT_EQ(error.code(), ErrorCode::kUnsupported);
        EXPECT_THAT(error.message(), HasSubstr("share a GPU"));
      },
      with_fakes());

  EXPECT_EQ(exits[0].status, 0) << exits[0].output;
  EXPECT_EQ(exits[1].status, 0) << exits[1].output;
}

TEST(DevicesOfTwoRanks, ThatTheDriverDoesNotGiveAreAnErrorInItsWords) {
  const auto exits = test::run_ranks(
      1, [] { PartialState(); }, with_fakes({{"ACCEL_FAKE_DEVICES", "0"}}));

  EXPECT_NE(exits[0].status, 0);
  EXPECT_THAT(exits[0].output, HasSubstr("the driver is too old for this fake"));
}

}  // namespace
}  // namespace accel::device
