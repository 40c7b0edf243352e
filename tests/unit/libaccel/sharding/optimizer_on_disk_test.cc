// offload_optimizer_device nvme: the losses, weights and checkpoints of a run whose optimizer has its state in memory, to the bit.

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <accel/checkpoint.h>
#include <accel/error.h>
#include <accel/memory_use.h>

#include "tests/support/error_of.h"
#include "tests/support/mapped_memory.h"
#include "tests/support/offloaded_training.h"
#include "tests/support/rank_group.h"
#include "tests/support/scratch_folder.h"

namespace accel::optimizer_on_disk_test {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

using test::OffloadedTraining;
using test::zero_options;

class OptimizerOnDisk : public ::testing::TestWithParam<int> {
 protected:
  const test::ScratchFolder scratch_;
  const fs::path& folder_ = scratch_.path();
};

TEST_P(OptimizerOnDisk, TrainsAsInMemoryOnOneAndOnTwoRanks) {
  for (const int num_ranks : {1, 2}) {
    test::run_ranks(num_ranks, [&] {
      OffloadedTraining memory(zero_options(GetParam(), std::nullopt));
      memory.train(5);
      EXPECT_FALSE(test::lies_in(memory.average(), "/"));
      const std::vector<at::Tensor> expected = memory.outcome();
      memory.accelerator.wait_for_everyone();

      OffloadedTraining disk(zero_options(GetParam(), folder_));
      disk.train(5);
      test::expect_same_tensors(disk.outcome(), expected);
      EXPECT_TRUE(test::lies_in(disk.average(), folder_.filename().string()));
      disk.accelerator.wait_for_everyone();
    });
    if (test::rank_of_this_process() < 0) {
      EXPECT_TRUE(fs::is_empty(folder_)) << "the file has no name";
    }
  }
}

TEST_P(OptimizerOnDisk, GoesOnFromCheckpointsOfMemoryAndMemoryFromItsOwn) {
  const fs::path state = scratch_.path() / "state";
  test::run_ranks(2, [&] {
    OffloadedTraining whole(zero_options(GetParam(), std::nullopt));
    whole.train(3);
    whole.accelerator.save_state(state / "of_memory");
    whole.train(2);
    const std::vector<at::Tensor> expected = whole.outcome();

    OffloadedTraining disk(zero_options(GetParam(), folder_));
    disk.train(1);
    disk.results.assign(whole.results.begin(), whole.results.begin() + 3);
    disk.accelerator.load_state(state / "of_memory");
    EXPECT_TRUE(test::lies_in(disk.average(), folder_.filename().string()));
    disk.accelerator.save_state(state / "of_disk");
    disk.train(2);
    test::expect_same_tensors(disk.outcome(), expected);
    EXPECT_TRUE(test::lies_in(disk.average(), folder_.filename().string()));

    OffloadedTraining memory(zero_options(GetParam(), std::nullopt));
    memory.results.assign(whole.results.begin(), whole.results.begin() + 3);
    memory.accelerator.load_state(state / "of_disk");
    memory.train(2);
    test::expect_same_tensors(memory.outcome(), expected);
    memory.accelerator.wait_for_everyone();
  });
}

// FSDP with parameters of 16 bits, and those of 32 beside them.
AcceleratorOptions bf16_options(ShardingStrategy strategy, const std::optional<fs::path>& folder) {
  AcceleratorOptions options;
  options.cpu = true;
  options.fsdp_plugin.emplace();
  options.fsdp_plugin->sharding_strategy = strategy;
  options.fsdp_plugin->mixed_precision_policy =
      MixedPrecisionPolicy{.param_dtype = at::kBFloat16, .reduce_dtype = at::kFloat};
  if (folder) options.fsdp_plugin->offload_optimizer_nvme_path = folder->string();
  return options;
}

class MastersOnDisk : public ::testing::TestWithParam<ShardingStrategy> {};

TEST_P(MastersOnDisk, StepAndLoadAsInMemory) {
  const test::ScratchFolder scratch;
  test::run_ranks(2, [&] {
    OffloadedTraining memory(bf16_options(GetParam(), std::nullopt));
    memory.train(3);
    memory.accelerator.save_state(scratch.path() / "state");
    memory.train(2);
    EXPECT_FALSE(test::lies_in(memory.stepped_parameter(), scratch.path().filename().string()));

    OffloadedTraining disk(bf16_options(GetParam(), scratch.path()));
    disk.train(5);
    test::expect_same_tensors(disk.outcome(), memory.outcome());
    for (const at::Tensor& on_disk : {disk.stepped_parameter(), disk.average()})
      EXPECT_TRUE(test::lies_in(on_disk, scratch.path().filename().string()));
    EXPECT_EQ(memory_use(*disk.model).masters, 0);
    EXPECT_GT(memory_use(*memory.model).masters, 0);

    disk.results.resize(3);
    disk.accelerator.load_state(scratch.path() / "state");
    disk.train(2);
    test::expect_same_tensors(disk.outcome(), memory.outcome());
    disk.accelerator.wait_for_everyone();
  });
}

INSTANTIATE_TEST_SUITE_P(Strategies,
                         MastersOnDisk,
                         ::testing::Values(ShardingStrategy::kShardGradOp,
                                           ShardingStrategy::kFullShard));

INSTANTIATE_TEST_SUITE_P(Stages, OptimizerOnDisk, ::testing::Values(0, 1, 2, 3));

TEST(OptimizerOnDiskErrors, AFolderThatIsNotThereIsRefusedByPrepare) {
  const test::ScratchFolder scratch;
  const fs::path missing = scratch.path() / "missing";
  const Error error =
      test::error_of([&] { const OffloadedTraining training(zero_options(2, missing)); });
  EXPECT_EQ(error.code(), ErrorCode::kFileIo);
  EXPECT_THAT(error.message(), HasSubstr(missing.string()));
  EXPECT_THAT(error.remedy(), HasSubstr("offload_optimizer_nvme_path"));
}

}  // namespace
}  // namespace accel::optimizer_on_disk_test
