// Saving and loading through the Accelerator: hooks, and how a run begins.

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <optional>
#include <sstream>
#include <stdexcept>
#include <string>
#include <tuple>
#include <vector>

#include <ATen/core/ivalue.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>

#include <accel/accelerator.h>
#include <accel/error.h>
#include <accel/saved_object.h>

#include "tests/support/rank_group.h"
#include "tests/support/scratch_folder.h"

namespace accel::accelerator_checkpoint_test {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

using Models = std::vector<torch::nn::Module*>;

class AcceleratorCheckpoint : public ::testing::Test {
 protected:
  void TearDown() override { PartialState::reset(); }

  AcceleratorOptions options() const {
    return {.project_dir = scratch_.path().string(),
            .project_config = {.automatic_checkpoint_naming = true, .total_limit = 2}};
  }
  fs::path checkpoints() const { return scratch_.path() / "checkpoints"; }

  test::ScratchFolder scratch_;
  torch::nn::Linear net_{2, 1};
};

TEST_F(AcceleratorCheckpoint, HooksSeeTheModelsAndAddFilesToTheCheckpoint) {
  Accelerator accelerator(options());
  accelerator.prepare(net_);
  std::string loaded;
  Models seen;
  accelerator.register_save_state_pre_hook([&](const Models& models, const fs::path& folder) {
    seen = models;
    std::ofstream(folder / "vocabulary.txt") << "a b c";
  });
  accelerator.register_load_state_pre_hook([&](const Models& models, const fs::path& folder) {
    EXPECT_EQ(models, seen);
    std::getline(std::ifstream(folder / "vocabulary.txt"), loaded);
  });

  const CheckpointInfo saved = accelerator.save_state();
  accelerator.load_state();

  EXPECT_THAT(seen, ElementsAre(net_.get()));
  EXPECT_EQ(loaded, "a b c");
  std::stringstream manifest;
  manifest << std::ifstream(saved.folder / "accel_checkpoint.json").rdbuf();
  EXPECT_THAT(manifest.str(), HasSubstr("vocabulary.txt"));
}

TEST_F(AcceleratorCheckpoint, HooksTakeWeightsAndModelsOff) {
  Accelerator accelerator(options());
  accelerator.prepare(net_);
  accelerator.register_save_state_pre_hook(
      [](const Models& models, std::vector<ModelWeights>& weights, const fs::path&) {
        EXPECT_EQ(weights.at(0).model, models.at(0));
        EXPECT_TRUE(weights.at(0).tensors.at("weight").is_same(models.at(0)->parameters()[0]));
        weights.clear();
      });
  accelerator.register_load_state_pre_hook([](Models& models, const fs::path&) { models.clear(); });
  const fs::path saved = accelerator.save_state().folder;
  const at::Tensor before = net_->weight.detach().clone();

  accelerator.load_state();

  EXPECT_FALSE(fs::exists(saved / "model.safetensors"));
  EXPECT_TRUE(net_->weight.equal(before));
}

TEST_F(AcceleratorCheckpoint, FilesOfAccelerateAreOneOfTheNumberedOnes) {
  Accelerator accelerator(options());
  torch::optim::SGD sgd(net_->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
  auto [model, optimizer] = accelerator.prepare(net_, sgd);
  accelerator.backward(model(torch::ones({1, 2})).sum());
  optimizer.step();
  const at::Tensor trained = net_->weight.detach().clone();
  accelerator.async_save_state(
      {}, {.safe_serialization = false, .format = CheckpointFormat::kAccelerate});
  optimizer.step();  // after the copy was taken
  const fs::path saved = accelerator.wait_for_save()->folder;

  EXPECT_EQ(accelerator.load_state().folder, saved);

  EXPECT_TRUE(fs::exists(saved / "pytorch_model.bin") && fs::exists(saved / "optimizer.bin"));
  EXPECT_TRUE(net_->weight.equal(trained));
}

TEST_F(AcceleratorCheckpoint, AnObjectIsSavedOnceAndNamesOfCopiesAreWrapped) {
  test::run_ranks(2, [this] {
    Accelerator accelerator(options());
    const auto model = accelerator.prepare(net_);
    accelerator.save(std::int64_t{accelerator.process_index()}, scratch_.path() / "rank.pt");
    accelerator.wait_for_everyone();
    EXPECT_EQ(load(scratch_.path() / "rank.pt").toInt(), 0);
    EXPECT_TRUE(accelerator.get_state_dict(model).tensors.contains("weight"));
    EXPECT_TRUE(accelerator.get_state_dict(model, StateDictOptions{.unwrap = false})
                    .tensors.contains("module.weight"));
  });
}

TEST_F(AcceleratorCheckpoint, HooksRunInTheirOrderUntilTheirHandleRemovesThem) {
  Accelerator accelerator(options());
  std::vector<std::string> calls;
  const auto note = [&](const char* name) {
    return [&calls, name](const Models&, const fs::path&) { calls.emplace_back(name); };
  };
  accelerator.register_save_state_pre_hook(note("first"));
  const RemovableHandle second = accelerator.register_save_state_pre_hook(note("second"));
  accelerator.register_save_state_pre_hook(note("third"));
  const RemovableHandle load = accelerator.register_load_state_pre_hook(note("load"));

  accelerator.save_state();
  second.remove();
  second.remove();
  accelerator.save_state();
  load.remove();
  accelerator.load_state();

  EXPECT_THAT(calls, ElementsAre("first", "second", "third", "first", "third"));
}

TEST_F(AcceleratorCheckpoint, OneInTheMiddleOfAnAccumulationIsWarnedOf) {
  AcceleratorOptions wanted = options();
  wanted.gradient_accumulation_steps = 2;
  Accelerator accelerator(wanted);
  torch::optim::SGD sgd(net_->parameters(), torch::optim::SGDOptions(0.1));
  auto [model, optimizer] = accelerator.prepare(net_, sgd);
  const auto said_by_saving_after_a_batch = [&] {
    {
      const auto accumulating = accelerator.accumulate(model);
      accelerator.backward(model(torch::ones({1, 2})).sum());
      optimizer.step();
      optimizer.zero_grad();
    }
    ::testing::internal::CaptureStderr();
    accelerator.save_state();
    return ::testing::internal::GetCapturedStderr();
  };
  EXPECT_THAT(said_by_saving_after_a_batch(), HasSubstr("in the middle of an accumulation"));
  EXPECT_THAT(said_by_saving_after_a_batch(), Not(HasSubstr("accumulation")));
}

TEST_F(AcceleratorCheckpoint, AHookThatThrowsFailsTheSaveAndLeavesTheOlderCheckpoint) {
  Accelerator accelerator(options());
  const fs::path older = accelerator.save_state().folder;
  accelerator.register_save_state_pre_hook(
      [](const Models&, const fs::path&) { throw std::runtime_error("no vocabulary"); });

  try {
    accelerator.save_state();
    FAIL() << "saved without the hook's file";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("no vocabulary"));
  }

  EXPECT_EQ(accelerator.load_state().folder, older);
}

TEST_F(AcceleratorCheckpoint, AHandleThatOutlivesTheAcceleratorDoesNothing) {
  auto accelerator = std::make_unique<Accelerator>(options());
  const RemovableHandle handle =
      accelerator->register_save_state_pre_hook([](const Models&, const fs::path&) {});

  accelerator.reset();

  EXPECT_NO_THROW(handle.remove());
}

// ---- save_model

// Saves where the main process cannot, and then where it can.
void expect_failure_on_all_ranks(const AcceleratorOptions& options, const fs::path& folder) {
  Accelerator accelerator(options);
  torch::nn::Linear net(2, 1);
  const auto model = accelerator.prepare(net);
  try {
    accelerator.save_model(model, "/proc/accel/model");
    ADD_FAILURE() << "rank " << accelerator.process_index() << " takes the model for saved";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kFileIo);
    EXPECT_THAT(error.what(), HasSubstr("rank 0"));
  }
  accelerator.save_state(folder / "state");
  accelerator.save_model(model, folder / "model");
  EXPECT_TRUE(fs::exists(folder / "model" / "model.safetensors"));
  accelerator.end_training();
}

TEST_F(AcceleratorCheckpoint, AModelThatTheMainProcessCannotSaveFailsOnAllRanks) {
  test::run_ranks(2, [&] { expect_failure_on_all_ranks({}, scratch_.path()); });
}

TEST_F(AcceleratorCheckpoint, ADividedModelThatTheMainProcessCannotSaveFailsOnAllRanks) {
  test::run_ranks(2, [&] {
    expect_failure_on_all_ranks({.fsdp_plugin = FullyShardedDataParallelPlugin{}}, scratch_.path());
  });
}

// ---- begin_run

TEST_F(AcceleratorCheckpoint, ANewRunRemovesTheCheckpointsOfAnOlderOneAndNothingElse) {
  Accelerator(options()).save_state();
  std::ofstream(checkpoints() / "notes.txt") << "x";
  fs::create_directories(checkpoints() / "checkpoint_best");
  Accelerator accelerator(options());

  EXPECT_EQ(accelerator.begin_run(RunStart::kAnew), std::nullopt);

  EXPECT_FALSE(fs::exists(checkpoints() / "checkpoint_0"));
  EXPECT_TRUE(fs::exists(checkpoints() / "notes.txt"));
  EXPECT_TRUE(fs::exists(checkpoints() / "checkpoint_best"));
  EXPECT_EQ(accelerator.save_state().iteration, 0);
}

TEST_F(AcceleratorCheckpoint, AFirstRunIsRefusedWhereThereAreCheckpointsAndRemovesNone) {
  EXPECT_EQ(Accelerator(options()).begin_run(RunStart::kFirst), std::nullopt);
  Accelerator(options()).save_state();
  fs::remove(checkpoints() / "checkpoint_0" / "accel_checkpoint.json");  // one that is not whole
  Accelerator accelerator(options());
  try {
    std::ignore = accelerator.begin_run(RunStart::kFirst);
    ADD_FAILURE() << "the run began";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
    EXPECT_THAT(error.message(), HasSubstr("checkpoint_0"));
    EXPECT_THAT(error.remedy(), HasSubstr("overwrite"));
  }
  EXPECT_TRUE(fs::exists(checkpoints() / "checkpoint_0"));
}

TEST_F(AcceleratorCheckpoint, AResumedRunGoesOnFromTheNewestCheckpoint) {
  {
    Accelerator accelerator(options());
    accelerator.prepare(net_);
    accelerator.save_state();
    accelerator.save_state();
  }
  torch::nn::Linear net(2, 1);
  Accelerator accelerator(options());
  accelerator.prepare(net);

  const auto checkpoint = accelerator.begin_run(RunStart::kResume);

  ASSERT_TRUE(checkpoint);
  EXPECT_EQ(checkpoint->folder, checkpoints() / "checkpoint_1");
  EXPECT_TRUE(net->weight.equal(net_->weight));
  EXPECT_EQ(accelerator.save_state().iteration, 2);
}

TEST_F(AcceleratorCheckpoint, ARunThatFindsOnlyDamagedOnesNamesThemAndDoesNotBeginAnew) {
  Accelerator(options()).save_state();
  fs::remove(checkpoints() / "checkpoint_0" / "accel_checkpoint.json");
  Accelerator accelerator(options());
  try {
    std::ignore = accelerator.begin_run(RunStart::kResume);
    ADD_FAILURE() << "began anew";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kCheckpointIncomplete);
    EXPECT_THAT(error.render(), HasSubstr("checkpoint_0: "));
  }
  EXPECT_TRUE(fs::exists(checkpoints() / "checkpoint_0"));

  fs::rename(checkpoints() / "checkpoint_0", checkpoints() / "away");  // as the error says
  EXPECT_EQ(accelerator.begin_run(RunStart::kResume), std::nullopt);
}

TEST_F(AcceleratorCheckpoint, ARestartedJobResumesWhateverTheProgramAskedFor) {
  Accelerator(options()).save_state();
  PartialState::reset();
  setenv("TORCHELASTIC_RESTART_COUNT", "1", 1);
  Accelerator accelerator(options());
  unsetenv("TORCHELASTIC_RESTART_COUNT");

  for (const RunStart start : {RunStart::kAnew, RunStart::kFirst}) {
    const auto checkpoint = accelerator.begin_run(start);

    ASSERT_TRUE(checkpoint);
    EXPECT_EQ(checkpoint->iteration, 0);
  }
}

// Nodes came and went: no restart by its count, and who knew that the job has begun may be gone.
TEST_F(AcceleratorCheckpoint, ALaterGenerationOfAJobRemovesNothingWhoeverIsLeft) {
  setenv("TORCHELASTIC_RESTART_COUNT", "0", 1);
  for (const char* generation : {"2", "1", "0"}) {
    SCOPED_TRACE(generation);
    const bool is_later = generation == std::string("2");
    const fs::path saved = Accelerator(options()).save_state().folder;
    PartialState::reset();
    setenv("ACCEL_GENERATION", generation, 1);
    Accelerator accelerator(options());

    const auto checkpoint = accelerator.begin_run(RunStart::kAnew);

    EXPECT_EQ(checkpoint.has_value(), is_later);
    EXPECT_EQ(fs::exists(saved), is_later);
    PartialState::reset();
    unsetenv("ACCEL_GENERATION");
    fs::remove_all(checkpoints());
  }
  unsetenv("TORCHELASTIC_RESTART_COUNT");
}

TEST_F(AcceleratorCheckpoint, ARunWithoutAProjectCannotBegin) {
  Accelerator accelerator;

  EXPECT_THROW(accelerator.begin_run(RunStart::kAnew), Error);
}

}  // namespace
}  // namespace accel::accelerator_checkpoint_test
