// Checkpoints in the files of HF Accelerate. Accelerate itself takes part in tests/peer/accelerate_checkpoints.py.

#include <filesystem>
#include <fstream>
#include <iterator>

#include <ATen/core/Dict.h>
#include <ATen/core/ivalue.h>
#include <ATen/ops/ones.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/optim/lbfgs.h>
#include <torch/optim/sgd.h>

#include <accel/checkpoint.h>
#include <accel/error.h>
#include <accel/precision.h>
#include <accel/random.h>
#include <accel/saved_object.h>
#include <accel/state.h>

#include "tests/support/error_of.h"
#include "tests/support/names_in.h"
#include "tests/support/rank_group.h"
#include "tests/support/scratch_folder.h"
#include "tests/unit/libaccel/checkpoint/training_run.h"

namespace accel::accelerate_files_test {
namespace {

namespace fs = std::filesystem;
using test::error_of;
using test::names_in;
using test::TrainingRun;
using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsSupersetOf;
using ::testing::Not;

constexpr SaveStateOptions kAsAccelerate{.format = CheckpointFormat::kAccelerate};

// The generator of the process, as the Accelerator saves it.
class ProcessRandomness final : public Stateful {
 public:
  std::int64_t step = 4;
  [[nodiscard]] StateDict state_dict() const override {
    StateDict state = rng_state();
    state.values["step"] = step;
    return state;
  }
  void load_state_dict(const StateDict& state) override {
    set_rng_state(state);
    step = std::get<std::int64_t>(state.values.at("step"));
  }
};

void expect_equal(const TrainingRun& a, const TrainingRun& b) {
  const auto left = a.tensors();
  const auto right = b.tensors();
  for (std::size_t i = 0; i < left.size(); ++i)
    EXPECT_TRUE(left[i].second.equal(right[i].second)) << left[i].first;
}

class AccelerateFiles : public ::testing::Test {
 protected:
  // Makes the folder what Accelerate itself would have left.
  void forget_the_manifest() {
    fs::remove(folder_ / "accel_checkpoint.json");
    fs::remove(folder_ / "loader.json");
  }

  test::ScratchFolder scratch_;
  fs::path folder_ = scratch_.path() / "saved";
};

TEST_F(AccelerateFiles, ARunGoesOnFromThem) {
  TrainingRun uninterrupted(1);
  uninterrupted.train(3);
  save_checkpoint(folder_, uninterrupted.objects(), {.step = 3, .files = kAsAccelerate});
  uninterrupted.train(3);

  TrainingRun resumed(2);
  const LoadReport report = load_checkpoint(folder_, resumed.objects());
  resumed.train(3);

  EXPECT_THAT(names_in(folder_),
              ElementsAre("accel_checkpoint.json",
                          "custom_checkpoint_0.pkl",
                          "loader.json",
                          "model.safetensors",
                          "optimizer.bin",
                          "random_states_0.pkl",
                          "scheduler.bin"));
  EXPECT_EQ(report.checkpoint.step, 3);
  EXPECT_THAT(report.notices, ElementsAre());
  expect_equal(resumed, uninterrupted);
  EXPECT_EQ(resumed.loader.value, 6);
  EXPECT_EQ(resumed.custom.value, 18);
}

TEST_F(AccelerateFiles, TheScalerHasTheValuesThatPyTorchsHas) {
  TrainingRun run(1);
  GradScaler scaler({.init_scale = 1024.0, .growth_interval = 3});
  CheckpointObjects objects = run.objects();
  objects.scaler = &scaler;
  save_checkpoint(folder_, objects, {.files = kAsAccelerate});

  const auto saved = load(folder_ / "scaler.pt").toGenericDict();
  GradScaler loaded;
  objects.scaler = &loaded;
  load_checkpoint(folder_, objects);

  std::vector<std::string> names;
  for (const auto& entry : saved) names.push_back(entry.key().toStringRef());
  EXPECT_THAT(
      names,
      ::testing::UnorderedElementsAre(
          "scale", "growth_factor", "backoff_factor", "growth_interval", "_growth_tracker"));
  EXPECT_EQ(loaded.get_scale(), 1024.0);
  EXPECT_EQ(std::get<std::int64_t>(loaded.state_dict().values.at("growth_interval")), 3);
}

TEST_F(AccelerateFiles, PickledWeightsStandInOurOwnFormatToo) {
  TrainingRun run(1);
  run.train(2);
  save_checkpoint(folder_, run.objects(), {.files = {.safe_serialization = false}});

  TrainingRun loaded(2);
  load_checkpoint(folder_, loaded.objects());

  EXPECT_THAT(names_in(folder_),
              AllOf(IsSupersetOf({"pytorch_model.bin", "optimizer.json"}),
                    Not(Contains("model.safetensors"))));
  expect_equal(loaded, run);
  EXPECT_EQ(load_state_dict(folder_ / "pytorch_model.bin").size(), run.tensors().size());
}

TEST_F(AccelerateFiles, OneWithoutAManifestIsLoadedAndSaysWhatItLacks) {
  TrainingRun run(1);
  run.train(2);
  ProcessRandomness random;
  CheckpointObjects objects = run.objects();
  objects.random = &random;
  save_checkpoint(folder_, objects, {.files = kAsAccelerate});
  forget_the_manifest();

  TrainingRun loaded(2);
  objects = loaded.objects();
  random.step = 0;
  objects.random = &random;
  const LoadReport report = load_checkpoint(folder_, objects);

  expect_equal(loaded, run);
  EXPECT_EQ(report.checkpoint.step, 4);
  EXPECT_EQ(random.step, 4);
  EXPECT_EQ(loaded.loader.value, 0);
  EXPECT_THAT(report.notices,
              ElementsAre(HasSubstr("has no manifest"), HasSubstr("no places of data loaders")));
}

TEST_F(AccelerateFiles, NothingIsChangedWhenOneOfThemIsDamaged) {
  TrainingRun run(1);
  run.train(2);
  ProcessRandomness random;
  CheckpointObjects objects = run.objects();
  objects.random = &random;
  save_checkpoint(folder_, objects, {.files = kAsAccelerate});
  forget_the_manifest();
  for (const char* name : {"model.safetensors",
                           "optimizer.bin",
                           "scheduler.bin",
                           "custom_checkpoint_0.pkl",
                           "random_states_0.pkl"}) {
    const fs::path copy = scratch_.path() / "damaged";
    fs::remove_all(copy);
    fs::copy(folder_, copy, fs::copy_options::recursive);
    fs::resize_file(copy / name, fs::file_size(copy / name) / 2);
    TrainingRun before(3);
    TrainingRun target(3);
    objects = target.objects();
    objects.random = &random;

    EXPECT_THAT(error_of([&] { load_checkpoint(copy, objects); }).what(), HasSubstr(name));

    expect_equal(target, before);
    EXPECT_EQ(target.custom.value, 0) << name;
  }
}

TEST_F(AccelerateFiles, AChangedByteIsFoundByTheManifest) {
  TrainingRun run(1);
  save_checkpoint(folder_, run.objects(), {.files = kAsAccelerate});
  std::fstream file(folder_ / "optimizer.bin", std::ios::in | std::ios::out | std::ios::binary);
  file.seekp(static_cast<std::streamoff>(fs::file_size(folder_ / "optimizer.bin") / 2));
  file.put('!');
  file.close();

  const Error error = error_of([&] { load_checkpoint(folder_, run.objects()); });

  EXPECT_EQ(error.code(), ErrorCode::kCheckpointIncomplete);
  EXPECT_THAT(error.message(), AllOf(HasSubstr("optimizer.bin"), HasSubstr("XXH3")));
}

TEST_F(AccelerateFiles, AnOptimizerOfAnotherClassIsRefused) {
  TrainingRun run(1);
  run.train(1);
  save_checkpoint(folder_, run.objects(), {.files = kAsAccelerate});
  torch::optim::SGD sgd({{run.net->first->parameters()}, {run.net->last->parameters()}},
                        torch::optim::SGDOptions(0.1));
  CheckpointObjects objects = run.objects();
  objects.optimizers = {&sgd};

  const Error error = error_of([&] { load_checkpoint(folder_, objects); });

  EXPECT_EQ(error.code(), ErrorCode::kCheckpointMismatch);
  EXPECT_THAT(error.message(),
              HasSubstr("has no option dampening: it is of another class than SGD"));
}

TEST_F(AccelerateFiles, AnOptimizerThatPyTorchSavesOtherwiseIsRefusedBeforeAnythingIsWritten) {
  TrainingRun run(1);
  torch::optim::LBFGS lbfgs(run.net->parameters(), torch::optim::LBFGSOptions(0.1));
  CheckpointObjects objects = run.objects();
  objects.optimizers = {&lbfgs};

  const Error error =
      error_of([&] { save_checkpoint(folder_, objects, {.files = kAsAccelerate}); });

  EXPECT_EQ(error.code(), ErrorCode::kUnsupported);
  EXPECT_THAT(error.message(), HasSubstr("the state of LBFGS has no place in optimizer.bin"));
  EXPECT_FALSE(fs::exists(folder_));
}

TEST_F(AccelerateFiles, OfTwoRanksAreLoadedByOneAndSoAreNamesThatDdpWraps) {
  test::run_ranks(2, [this] {
    const PartialState state;
    TrainingRun run(1);
    run.train(2);
    save_checkpoint(folder_, run.objects(), {.files = kAsAccelerate});
    TrainingRun loaded(2);
    load_checkpoint(folder_, loaded.objects());
    expect_equal(loaded, run);
  });
  EXPECT_THAT(names_in(folder_), IsSupersetOf({"random_states_0.pkl", "random_states_1.pkl"}));
  auto tensors = load_state_dict(folder_ / "model.safetensors");
  const at::Tensor expected = tensors.at("first.weight");
  safetensors::TensorMap wrapped;
  for (const auto& [name, tensor] : tensors) wrapped.emplace("module." + name, tensor);
  forget_the_manifest();
  safetensors::save_file(wrapped, folder_ / "model.safetensors");
  TrainingRun alone(3);
  CheckpointObjects objects = alone.objects();
  objects.random = nullptr;
  load_checkpoint(folder_, objects);
  EXPECT_TRUE(alone.net->first->weight.equal(expected));
}

// ---- hooks that choose

TEST_F(AccelerateFiles, AHookSavesAndLoadsAModelInAccelsPlace) {
  TrainingRun run(1);
  torch::nn::Linear second(2, 2);
  CheckpointObjects objects = run.objects();
  objects.models.push_back(second.get());
  objects.choose_weights.emplace_back(
      [&](std::vector<ModelWeights>& weights, const fs::path& folder) {
        ASSERT_EQ(weights.size(), 2u);
        safetensors::save_file({{"own", weights[0].tensors.at("first.weight")}},
                               folder / "own.safetensors");
        weights.erase(weights.begin());
      });
  save_checkpoint(folder_, objects);
  EXPECT_TRUE(safetensors::load_file(folder_ / "model.safetensors").contains("bias"));
  EXPECT_FALSE(fs::exists(folder_ / "model_1.safetensors"));

  TrainingRun loaded(2);
  torch::nn::Linear loaded_second(2, 2);
  const at::Tensor before = loaded.net->first->weight.detach().clone();
  objects = loaded.objects();
  objects.models.push_back(loaded_second.get());
  objects.choose_models.emplace_back(
      [&](std::vector<torch::nn::Module*>& models, const fs::path& folder) {
        EXPECT_TRUE(fs::exists(folder / "own.safetensors"));
        models.erase(models.begin());
      });
  load_checkpoint(folder_, objects);

  EXPECT_TRUE(loaded_second->weight.equal(second->weight));
  EXPECT_TRUE(loaded.net->first->weight.equal(before));
}

TEST_F(AccelerateFiles, ALoadThatIsNotStrictLeavesWhatAHookTookOff) {
  TrainingRun run(1);
  CheckpointObjects objects = run.objects();
  objects.choose_weights.emplace_back([](std::vector<ModelWeights>& weights, const fs::path&) {
    weights[0].tensors.erase("last.weight");
  });
  save_checkpoint(folder_, objects);
  TrainingRun loaded(2);
  const at::Tensor before = loaded.net->last->weight.detach().clone();
  objects = loaded.objects();

  EXPECT_EQ(error_of([&] { load_checkpoint(folder_, objects); }).code(),
            ErrorCode::kSafetensorsMismatch);
  objects.strict = false;
  load_checkpoint(folder_, objects);

  EXPECT_TRUE(loaded.net->last->weight.equal(before));
  EXPECT_TRUE(loaded.net->first->weight.equal(run.net->first->weight));
}

TEST_F(AccelerateFiles, HooksThatLeaveOtherWeightsOnAnotherRankFailTheSave) {
  test::run_ranks(2, [this] {
    const PartialState state;
    TrainingRun run(1);
    CheckpointObjects objects = run.objects();
    objects.choose_weights.emplace_back([&](std::vector<ModelWeights>& weights, const fs::path&) {
      if (state.process_index() == 1) weights.clear();
    });
    const Error error = error_of([&] { save_checkpoint(folder_, objects); });
    EXPECT_EQ(error.code(), ErrorCode::kCheckpointMismatch);
    EXPECT_THAT(error.message(), HasSubstr("hooks have left the weights of 0 models on rank 1"));
  });
  EXPECT_FALSE(fs::exists(folder_));
}

}  // namespace
}  // namespace accel::accelerate_files_test
