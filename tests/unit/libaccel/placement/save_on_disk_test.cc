// Activations on a disk: gradients equal to the bit, what is left in memory meanwhile, and what is refused.

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <ATen/TensorOperators.h>
#include <ATen/ops/randn.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>
#include <torch/utils.h>

#include <accel/activation_checkpoint.h>
#include <accel/error.h>
#include <accel/save_on_disk.h>

#include "libaccel/placement/disk_store.h"
#include "tests/support/error_of.h"
#include "tests/support/faulty_disk.h"
#include "tests/support/scratch_folder.h"

namespace accel::save_on_disk_test {
namespace {

namespace nn = torch::nn;
using test::error_of;
using ::testing::HasSubstr;

constexpr std::int64_t kSmallest = 4096;

// Memory of tensors, as far as somebody holds it.
class Memory {
 public:
  at::Tensor add(const at::Tensor& tensor) {
    storages_.push_back(tensor.storage().getWeakStorageImpl());
    return tensor;
  }
  [[nodiscard]] int num_live() const {
    int count = 0;
    for (const auto& storage : storages_) count += static_cast<int>(storage.lock() != nullptr);
    return count;
  }

 private:
  std::vector<c10::weak_intrusive_ptr<c10::StorageImpl>> storages_;
};

nn::Sequential block() {
  return nn::Sequential(nn::LayerNorm(nn::LayerNormOptions({32})),
                        nn::Linear(32, 128),
                        nn::GELU(),
                        nn::Dropout(0.3),
                        nn::Linear(128, 32));
}

// Gradients of three steps.
std::vector<at::Tensor> trained(SaveOnDisk* disk, bool has_parts = false) {
  torch::manual_seed(3);
  std::vector<nn::Sequential> nets;
  for (int i = 0; i < 4; ++i) nets.push_back(block());
  const at::Tensor input = at::randn({64, 32}).requires_grad_();
  for (int step = 0; step < 3; ++step) {
    at::Tensor loss;
    {
      std::optional<SaveOnDisk::Scope> scope;
      if (disk != nullptr) scope.emplace(disk->scope());
      at::Tensor x = input * (step + 1);
      for (nn::Sequential& net : nets) {
        auto part = [net](const at::Tensor& h) mutable { return net->forward(h); };
        x = x + (has_parts ? checkpoint_activations(part, x) : net->forward(x));
      }
      loss = x.square().sum();
      if (has_parts && disk != nullptr) disk->wait_until_written();
    }
    loss.backward();
  }
  std::vector<at::Tensor> all = {input.grad()};
  for (const nn::Sequential& net : nets) {
    for (const at::Tensor& parameter : net->parameters()) all.push_back(parameter.grad());
  }
  return all;
}

void expect_equal(const std::vector<at::Tensor>& one, const std::vector<at::Tensor>& other) {
  ASSERT_EQ(one.size(), other.size());
  for (std::size_t i = 0; i < one.size(); ++i) EXPECT_TRUE(one[i].equal(other[i])) << i;
}

TEST(SaveOnDisk, GivesTheSameGradientsToTheBit) {
  const test::ScratchFolder folder;
  const auto kept = trained(nullptr);
  for (const std::int64_t in_memory :
       {std::int64_t{1}, std::int64_t{1} << 17, std::int64_t{1} << 30}) {
    SaveOnDisk disk(
        {.folder = folder.path(), .min_bytes = kSmallest, .max_bytes_in_memory = in_memory});
    expect_equal(trained(&disk), kept);
  }
}

TEST(SaveOnDisk, TheNextForwardTakesTheSameRoom) {
  const test::ScratchFolder folder;
  SaveOnDisk disk({.folder = folder.path(), .min_bytes = kSmallest, .max_bytes_in_memory = 1});
  const at::Tensor weight = at::randn({64, 64}).requires_grad_();
  std::vector<std::int64_t> file_bytes;
  for (int step = 0; step < 4; ++step) {
    at::Tensor y;
    {
      const auto scope = disk.scope();
      y = (weight * 2).sin().exp().sum();
      disk.wait_until_written();
    }
    y.backward();
    y.reset();
    file_bytes.push_back(disk.statistics().file_bytes);
  }
  // sin() saves its input and exp() its result: what leaves memory in the background may still do so when the next forward
  // comes, which then takes new room.
  EXPECT_GE(file_bytes.front(), 2 * 64 * 64 * 4);
  EXPECT_LE(file_bytes.back(), 2 * file_bytes.front());
  EXPECT_EQ(disk.statistics().num_written, 4 * 2);
}

TEST(SaveOnDisk, WhatWasSavedLeavesMemory) {
  const test::ScratchFolder folder;
  SaveOnDisk disk({.folder = folder.path(), .min_bytes = kSmallest});
  Memory memory;
  const at::Tensor input = at::randn({64, 64}).requires_grad_();
  at::Tensor y;
  {
    const auto scope = disk.scope();
    y = input * 2;
    for (int i = 0; i < 5; ++i) y = memory.add(y.sin());
    y = y.sum();
    disk.wait_until_written();
  }

  EXPECT_EQ(memory.num_live(), 0);
  const auto statistics = disk.statistics();
  EXPECT_EQ(statistics.num_written, 5) << "what sin() saves: its inputs";
  EXPECT_EQ(statistics.bytes_written, 5 * 64 * 64 * 4);
  EXPECT_EQ(statistics.num_read, 0);
  y.backward();
  EXPECT_EQ(disk.statistics().num_read, 5);
  EXPECT_TRUE(input.grad().defined());
}

TEST(SaveOnDisk, ViewsOfOneMemoryAreWrittenOnce) {
  const test::ScratchFolder folder;
  SaveOnDisk disk({.folder = folder.path(), .min_bytes = kSmallest});
  const at::Tensor input = at::randn({64, 96}).requires_grad_();
  const auto loss = [](const at::Tensor& x) {
    const auto parts = (x * 2).split(32, 1);
    return (parts[0] * parts[1].t().contiguous().t() * parts[2]).sum() + parts[0].sin().sum();
  };
  at::Tensor y;
  {
    const auto scope = disk.scope();
    y = loss(input);
    disk.wait_until_written();
  }
  EXPECT_EQ(disk.statistics().num_written, 3) << "x * 2, the transposed copy, the first product";
  y.backward();

  const at::Tensor plain = input.detach().clone().requires_grad_();
  loss(plain).backward();
  EXPECT_TRUE(input.grad().equal(plain.grad()));
}

TEST(SaveOnDisk, ParametersAndSmallTensorsStay) {
  const test::ScratchFolder folder;
  SaveOnDisk disk({.folder = folder.path(), .min_bytes = kSmallest});
  nn::Linear net(64, 64);
  const at::Tensor small = at::randn({2, 64}).requires_grad_();
  {
    const auto scope = disk.scope();
    const at::Tensor y = net->forward(small).sin().sum();
    disk.wait_until_written();
    y.backward();
  }
  EXPECT_EQ(disk.statistics().num_written, 0);
}

TEST(SaveOnDisk, HasTheInputsOfPartsAlone) {
  const test::ScratchFolder folder;
  SaveOnDisk disk({.folder = folder.path(), .min_bytes = kSmallest});
  expect_equal(trained(&disk, /*has_parts=*/true), trained(nullptr));
  // Of three steps with four parts: their inputs, and what the last square() saves.
  EXPECT_EQ(disk.statistics().num_written, 3 * (4 + 1));
}

TEST(SaveOnDisk, AGraphThatIsRetainedIsGoneThroughAgain) {
  const test::ScratchFolder folder;
  SaveOnDisk disk({.folder = folder.path(), .min_bytes = kSmallest, .max_bytes_in_memory = 1});
  const at::Tensor x = at::randn({64, 64}).requires_grad_();
  at::Tensor y;
  {
    const auto scope = disk.scope();
    y = (x * 2).sin().exp().sum();
  }
  y.backward({}, /*retain_graph=*/true);
  y.backward();

  const at::Tensor plain = x.detach().clone().requires_grad_();
  const at::Tensor z = (plain * 2).sin().exp().sum();
  z.backward({}, /*retain_graph=*/true);
  z.backward();
  EXPECT_TRUE(x.grad().equal(plain.grad()));
}

TEST(SaveOnDisk, GraphsMayOutliveIt) {
  const test::ScratchFolder folder;
  const at::Tensor x = at::randn({64, 64}).requires_grad_();
  at::Tensor y;
  {
    SaveOnDisk disk({.folder = folder.path(), .min_bytes = kSmallest});
    const auto scope = disk.scope();
    y = (x * 2).sin().sum();
  }
  y.backward();
  EXPECT_TRUE(x.grad().equal((x.detach() * 2).cos() * 2));
}

TEST(SaveOnDiskRefuses, ATensorThatIsChangedInPlaceBeforeTheBackward) {
  const test::ScratchFolder folder;
  SaveOnDisk disk({.folder = folder.path(), .min_bytes = kSmallest});
  const at::Tensor x = at::randn({64, 64}).requires_grad_();
  at::Tensor hidden;
  at::Tensor y;
  {
    const auto scope = disk.scope();
    hidden = x * 2;
    y = hidden.sin().sum();
  }
  hidden.add_(1);

  const Error error = error_of([&y] { y.backward(); });
  EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
  EXPECT_THAT(error.message(), HasSubstr("it was at version 0, and is at version 1"));
}

TEST(SaveOnDiskRefuses, AFolderThatIsNotThere) {
  const Error error = error_of([] { SaveOnDisk({.folder = "/no/such/folder"}); });
  EXPECT_EQ(error.code(), ErrorCode::kFileIo);
  EXPECT_THAT(error.message(), HasSubstr("cannot keep activations in '/no/such/folder'"));
  EXPECT_THAT(error.remedy(), HasSubstr("SaveOnDiskOptions::folder"));
}

TEST(SaveOnDiskRefuses, SizesBelowOne) {
  const test::ScratchFolder folder;
  const Error error = error_of([&] { SaveOnDisk({.folder = folder.path(), .min_bytes = 0}); });
  EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
  EXPECT_THAT(error.message(), HasSubstr("min_bytes is 0 bytes"));
}

TEST(SaveOnDiskRefuses, AForwardThatTheDiskHasNoRoomFor) {
  const test::ScratchFolder folder;
  test::FaultyDisk full;
  full.set_free_bytes(20'000);
  const auto store = std::make_shared<placement::DiskStore>(
      SaveOnDiskOptions{.folder = folder.path(), .min_bytes = kSmallest}, full);
  const at::Tensor x = at::randn({64, 64}).requires_grad_();
  const interception::SavedTensorScope scope(interception::hooks_of(store));

  const Error error = error_of([&x] { (void)(x * 2).sin().exp().sin().exp(); });
  EXPECT_EQ(error.code(), ErrorCode::kDiskFull);
  EXPECT_THAT(error.remedy(), HasSubstr("SaveOnDiskOptions::folder"));
}

}  // namespace
}  // namespace accel::save_on_disk_test
