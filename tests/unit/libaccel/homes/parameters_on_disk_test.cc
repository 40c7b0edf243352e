// offload_param_device nvme: the losses, weights and checkpoints of a run that has its parameters in memory, to the bit, on one rank
// and on two.

#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/randn.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <accel/checkpoint.h>
#include <accel/error.h>
#include <accel/lomo.h>
#include <accel/memory_use.h>

#include "libaccel/engine/pager/pager.h"
#include "libaccel/engine/shm/memory/node_identity.h"
#include "tests/support/error_of.h"
#include "tests/support/mapped_memory.h"
#include "tests/support/offloaded_training.h"
#include "tests/support/rank_group.h"
#include "tests/support/scratch_folder.h"

namespace accel::parameters_on_disk_test {
namespace {

namespace fs = std::filesystem;
using test::OffloadedTraining;
using ::testing::HasSubstr;

constexpr test::OffloadedModel kDeep{.width = 200, .depth = 6};
constexpr std::int64_t kUnitBytes = std::int64_t{4} * 200 * 201;

// What of the model lies in the folder.
enum class OnDisk { kNothing, kParameters, kAll };

// Each layer is a unit.
AcceleratorOptions options_of(OnDisk what, const fs::path& folder) {
  AcceleratorOptions options;
  options.cpu = true;
  options.fsdp_plugin.emplace();
  options.fsdp_plugin->auto_wrap_policy = AutoWrapPolicy::kTransformerBasedWrap;
  options.fsdp_plugin->transformer_cls_names_to_wrap = {{"Linear"}};
  if (what != OnDisk::kNothing) options.fsdp_plugin->offload_param_nvme_path = folder.string();
  if (what == OnDisk::kAll) options.fsdp_plugin->offload_optimizer_nvme_path = folder.string();
  return options;
}

class ParametersOnDisk : public ::testing::TestWithParam<OnDisk> {
 protected:
  using Change = std::function<void(AcceleratorOptions&)>;

  // Trains with options that the test has changed, in memory and on disk.
  void expect_same_training(int num_ranks, const Change& change, int batches = 5) {
    test::run_ranks(num_ranks, [&] {
      AcceleratorOptions in_memory = options_of(OnDisk::kNothing, folder_);
      change(in_memory);
      OffloadedTraining memory(in_memory, kDeep);
      memory.train(batches);
      const std::vector<at::Tensor> expected = memory.outcome();
      memory.accelerator.wait_for_everyone();

      AcceleratorOptions on_disk = options_of(GetParam(), folder_);
      change(on_disk);
      OffloadedTraining disk(on_disk, kDeep);
      disk.train(batches);
      test::expect_same_tensors(disk.outcome(), expected);
      EXPECT_TRUE(lies_in_folder(disk.net->parameters().front()));
      disk.accelerator.wait_for_everyone();
    });
  }

  // While it is held, a parameter on disk is mapped.
  [[nodiscard]] bool lies_in_folder(const at::Tensor& parameter) const {
    const auto held = pager::hold_pages(std::vector{parameter});
    return held != nullptr && test::lies_in(parameter, folder_.filename().string());
  }

  const test::ScratchFolder scratch_;
  const fs::path& folder_ = scratch_.path();
};

TEST_P(ParametersOnDisk, TrainAsInMemoryOnOneAndOnTwoRanks) {
  for (const int num_ranks : {1, 2}) {
    expect_same_training(num_ranks, [](AcceleratorOptions&) {});
    if (test::rank_of_this_process() < 0) {
      EXPECT_TRUE(fs::is_empty(folder_)) << "the file has no name";
    }
  }
}

TEST_P(ParametersOnDisk, AreAddedToOverSeveralBackwards) {
  expect_same_training(
      2, [](AcceleratorOptions& options) { options.gradient_accumulation_steps = 2; }, 6);
}

TEST_P(ParametersOnDisk, TrainInFewerBitsAsInMemory) {
  expect_same_training(2, [](AcceleratorOptions& options) {
    options.fsdp_plugin->mixed_precision_policy =
        MixedPrecisionPolicy{.param_dtype = at::kBFloat16, .reduce_dtype = at::kFloat};
  });
}

TEST_P(ParametersOnDisk, MayBeCutByTensors) {
  expect_same_training(
      2, [](AcceleratorOptions& options) { options.fsdp_plugin->shard_by_tensor = true; });
}

TEST_P(ParametersOnDisk, AreClippedAsInMemory) {
  for (const int num_ranks : {1, 2}) {
    test::run_ranks(num_ranks, [&] {
      const auto clipped = [](OffloadedTraining& training) {
        for (int batch = 0; batch < 3; ++batch)
          training.train(1, [&] {
            training.results.push_back(
                training.accelerator.clip_grad_norm_(training.net->parameters(), 0.01));
          });
        return training.outcome();
      };
      OffloadedTraining memory(options_of(OnDisk::kNothing, folder_), kDeep);
      const std::vector<at::Tensor> expected = clipped(memory);
      OffloadedTraining disk(options_of(GetParam(), folder_), kDeep);
      test::expect_same_tensors(clipped(disk), expected);
      disk.accelerator.wait_for_everyone();
    });
  }
}

TEST_P(ParametersOnDisk, GoOnFromCheckpointsOfMemoryAndMemoryFromTheirs) {
  const test::ScratchFolder states;
  for (const int num_ranks : {1, 2}) {
    const fs::path state = states.path() / std::to_string(num_ranks);
    test::run_ranks(num_ranks, [&] {
      OffloadedTraining whole(options_of(OnDisk::kNothing, folder_), kDeep);
      whole.train(3);
      whole.accelerator.save_state(state / "of_memory");
      whole.train(2);
      const std::vector<at::Tensor> expected = whole.outcome();
      const auto go_on = [&](OffloadedTraining& training, const fs::path& from) {
        training.results.assign(whole.results.begin(), whole.results.begin() + 3);
        training.accelerator.load_state(from);
      };

      OffloadedTraining disk(options_of(GetParam(), folder_), kDeep);
      disk.train(1);
      go_on(disk, state / "of_memory");
      disk.accelerator.save_state(state / "of_disk");
      disk.train(2);
      test::expect_same_tensors(disk.outcome(), expected);

      OffloadedTraining memory(options_of(OnDisk::kNothing, folder_), kDeep);
      go_on(memory, state / "of_disk");
      memory.train(2);
      test::expect_same_tensors(memory.outcome(), expected);
      memory.accelerator.wait_for_everyone();
    });
  }
}

TEST_P(ParametersOnDisk, AreInMemoryAFewUnitsAtATime) {
  test::run_ranks(1, [&] {
    OffloadedTraining disk(options_of(GetParam(), folder_), kDeep);
    disk.train(3);
    const MemoryUse use = memory_use(*disk.model);
    EXPECT_EQ(use.parameters, 0);
    EXPECT_EQ(use.paged, 0) << "a step gives all units back";
    EXPECT_GT(use.peak_paged, 0);
    EXPECT_LE(use.peak_paged, 3 * (kUnitBytes + 4096));
  });
}

INSTANTIATE_TEST_SUITE_P(WithOptimizersInMemoryAndOnDisk,
                         ParametersOnDisk,
                         ::testing::Values(OnDisk::kParameters, OnDisk::kAll));

// What the program keeps is added to where it lies.
TEST_P(ParametersOnDisk, HaveGradientsThatAreKeptAndAddedTo) {
  test::run_ranks(2, [&] {
    const auto outcome = [](OffloadedTraining& training) {
      for (int step = 0; step < 3; ++step) {
        for (int batch = 0; batch < 2; ++batch) {
          const at::Tensor loss =
              (*training.model)(at::ones({2, kDeep.width}) * (step + 2 * batch)).square().mean();
          training.accelerator.backward(loss);
        }
        training.optimizer->step();
        training.optimizer->zero_grad(/*set_to_none=*/false);
      }
      return training.outcome();
    };
    OffloadedTraining memory(options_of(OnDisk::kNothing, folder_), kDeep);
    const std::vector<at::Tensor> expected = outcome(memory);
    OffloadedTraining disk(options_of(GetParam(), folder_), kDeep);
    test::expect_same_tensors(outcome(disk), expected);
    disk.accelerator.wait_for_everyone();
  });
}

// Two copies, of which each has a file.
TEST_P(ParametersOnDisk, MayBeCopiesThatAreDividedEach) {
  expect_same_training(
      4,
      [](AcceleratorOptions& options) {
        options.fsdp_plugin->fsdp_version = 2;
        options.parallelism_config = ParallelismConfig{.dp_replicate_size = 2, .dp_shard_size = 2};
      },
      3);
}

class ParametersInAFolder : public ::testing::Test {
 protected:
  [[nodiscard]] Error refusal(const AcceleratorOptions& options) const {
    return test::error_of([&] { const OffloadedTraining training(options, kDeep); });
  }

  const test::ScratchFolder scratch_;
  const fs::path& folder_ = scratch_.path();
};

// ZeRO-3 for inference.
TEST_F(ParametersInAFolder, EvaluateAsInMemoryBeforeAndAfterSteps) {
  test::run_ranks(2, [&] {
    const auto evaluated = [](OffloadedTraining& training) {
      const at::NoGradGuard no_grad;
      for (int batch = 0; batch < 4; ++batch)
        training.results.push_back((*training.model)(at::ones({2, kDeep.width}) * batch));
    };
    const auto outcome = [&](OffloadedTraining& training) {
      evaluated(training);
      training.train(2);
      evaluated(training);
      training.train(1);
      return training.outcome();
    };
    OffloadedTraining memory(options_of(OnDisk::kNothing, folder_), kDeep);
    const std::vector<at::Tensor> expected = outcome(memory);
    OffloadedTraining disk(options_of(OnDisk::kParameters, folder_), kDeep);
    test::expect_same_tensors(outcome(disk), expected);
    disk.accelerator.wait_for_everyone();
  });
}

TEST_F(ParametersInAFolder, AreNamedByZeroAndByItsFile) {
  const std::string file = R"({"zero_optimization": {"stage": 3, "offload_param": )"
                           R"({"device": "nvme", "nvme_path": ")" +
                           folder_.string() + R"("}}})";
  test::run_ranks(1, [&] {
    OffloadedTraining memory(test::zero_options(3, std::nullopt));
    memory.train(3);
    const AcceleratorOptions named =
        test::with_parameters_in(folder_, test::zero_options(3, std::nullopt));
    AcceleratorOptions of_file = test::zero_options(3, std::nullopt);
    of_file.deepspeed_plugin->hf_ds_config = file;
    for (const AcceleratorOptions& options : {named, of_file}) {
      OffloadedTraining disk(options);
      disk.train(3);
      test::expect_same_tensors(disk.outcome(), memory.outcome());
      EXPECT_EQ(memory_use(*disk.model).parameters, 0);
    }
  });
}

TEST_F(ParametersInAFolder, TrainWithoutALauncher) {
  OffloadedTraining memory(options_of(OnDisk::kNothing, folder_), kDeep);
  memory.train(3);
  OffloadedTraining disk(options_of(OnDisk::kAll, folder_), kDeep);
  disk.train(3);
  test::expect_same_tensors(disk.outcome(), memory.outcome());
  EXPECT_EQ(memory_use(*disk.model).parameters, 0);
}

TEST_F(ParametersInAFolder, AreTrainedByLomoOfOneProcess) {
  const auto trained = [&](OnDisk what) {
    Accelerator accelerator(options_of(what, folder_));
    torch::nn::Sequential net = test::offloaded_net(kDeep);
    auto [model, optimizer] = accelerator.prepare(
        net, std::shared_ptr<torch::optim::Optimizer>(std::make_shared<Lomo>(net->parameters())));
    const at::Tensor before = net->parameters().front().detach().clone();
    set_seed(3);
    std::vector<at::Tensor> results;
    for (int batch = 0; batch < 3; ++batch) {
      const at::Tensor loss = model(at::randn({4, kDeep.width})).square().mean();
      accelerator.backward(loss, {.learning_rate = 0.1});
      optimizer.step();
      optimizer.zero_grad();
      results.push_back(loss.detach());
    }
    for (const at::Tensor& parameter : net->parameters())
      results.push_back(parameter.detach().clone());
    EXPECT_FALSE(at::equal(before, net->parameters().front()));
    return results;
  };
  test::expect_same_tensors(trained(OnDisk::kParameters), trained(OnDisk::kNothing));
}

// With step_in_backward the gradients on disk are those that are stepped.
TEST_F(ParametersInAFolder, MayBeSteppedInTheBackward) {
  for (const int num_ranks : {1, 2}) {
    test::run_ranks(num_ranks, [&] {
      OffloadedTraining memory(options_of(OnDisk::kNothing, folder_), kDeep);
      memory.train(4);
      AcceleratorOptions options = options_of(OnDisk::kAll, folder_);
      options.fsdp_plugin->step_in_backward = true;
      OffloadedTraining disk(options, kDeep);
      disk.train(4);
      test::expect_same_tensors(disk.outcome(), memory.outcome());
      EXPECT_EQ(disk.optimizer->backward_steps().kept, 3U) << "the first one makes the states";
      disk.accelerator.wait_for_everyone();
    });
  }
}

TEST_F(ParametersInAFolder, LeaveNothingThereWhenRanksAreKilled) {
  const auto exits =
      test::run_ranks(2,
                      [&] {
                        OffloadedTraining disk(options_of(OnDisk::kAll, folder_), kDeep);
                        disk.train(2, [] { ::raise(SIGKILL); });
                      },
                      {.expect_success = false});
  if (test::rank_of_this_process() >= 0) return;
  EXPECT_EQ(exits[0].status, 128 + SIGKILL);
  EXPECT_TRUE(fs::is_empty(folder_));
}

TEST_F(ParametersInAFolder, ThatIsNotThereAreRefusedByPrepareOnAllRanks) {
  for (const int num_ranks : {1, 2}) {
    test::run_ranks(num_ranks, [&] {
      const fs::path missing = folder_ / "missing";
      const Error error = refusal(options_of(OnDisk::kParameters, missing));
      EXPECT_EQ(error.code(), ErrorCode::kFileIo);
      EXPECT_THAT(error.message(), HasSubstr(missing.string()));
      EXPECT_THAT(error.remedy(), HasSubstr("offload_param_nvme_path"));
    });
  }
}

TEST_F(ParametersInAFolder, NeedRoomForTheLargestUnit) {
  test::run_ranks(2, [&] {
    AcceleratorOptions options = options_of(OnDisk::kParameters, folder_);
    options.fsdp_plugin->max_live_bytes = 4096;
    const Error error = refusal(options);
    EXPECT_EQ(error.code(), ErrorCode::kOutOfMemory);
    EXPECT_THAT(error.message(), HasSubstr("max_live_bytes is 4096 bytes, and the largest unit"));
  });
}

TEST_F(ParametersInAFolder, OfSeveralNodesAreRefused) {
  test::run_ranks(2, [&] {
    const std::string node = "node" + std::to_string(test::rank_of_this_process());
    ::setenv(shm::kTestNodeVariable, node.c_str(), 1);
    const Error error = refusal(options_of(OnDisk::kParameters, folder_));
    EXPECT_EQ(error.code(), ErrorCode::kUnsupported);
    EXPECT_THAT(error.message(), HasSubstr("rank 1 is on another one than rank 0"));
    EXPECT_THAT(error.remedy(), HasSubstr("HYBRID_SHARD"));
  });
}

TEST_F(ParametersInAFolder, CannotBeWrittenToByOperators) {
  test::run_ranks(1, [&] {
    OffloadedTraining disk(options_of(OnDisk::kParameters, folder_), kDeep);
    const at::NoGradGuard no_grad;
    const Error error = test::error_of([&] { disk.net->parameters().front().zero_(); });
    EXPECT_EQ(error.code(), ErrorCode::kUnsupported);
    EXPECT_THAT(error.message(), HasSubstr("0.weight"));
  });
}

}  // namespace
}  // namespace accel::parameters_on_disk_test
