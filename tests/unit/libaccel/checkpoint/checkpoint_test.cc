// Checkpoints within one process: what comes back, what is refused, and that nothing changes then.

#include <filesystem>
#include <fstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <accel/async_save.h>
#include <accel/checkpoint.h>
#include <accel/error.h>

#include "runtime/checkpoint/hashed_file.h"
#include "runtime/checkpoint/manifest.h"
#include "tests/support/error_of.h"
#include "tests/support/names_in.h"
#include "tests/support/scratch_folder.h"
#include "tests/support/tensor_matchers.h"
#include "tests/support/working_folder.h"
#include "tests/unit/libaccel/checkpoint/training_run.h"

namespace accel::checkpoint_test {
namespace {

using test::error_of;
namespace fs = std::filesystem;
using test::names_in;
using test::SameTensor;
using test::TrainingRun;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::UnorderedElementsAre;

void expect_same(const TrainingRun& a, const TrainingRun& b) {
  const auto left = a.tensors();
  const auto right = b.tensors();
  ASSERT_EQ(left.size(), right.size());
  for (size_t i = 0; i < left.size(); ++i) {
    EXPECT_THAT(left[i].second, SameTensor(right[i].second)) << left[i].first;
  }
}

class Checkpoint : public ::testing::Test {
 protected:
  // Changes one byte of a file of the checkpoint.
  void flip_byte(const std::string& name, int offset) {
    std::fstream file(folder_ / name, std::ios::in | std::ios::out | std::ios::binary);
    file.seekg(offset);
    const char changed = static_cast<char>(file.get() ^ 1);
    file.seekp(offset);
    file.put(changed);
  }

  test::ScratchFolder scratch_;
  fs::path folder_ = scratch_.path() / "saved";
};

TEST_F(Checkpoint, ResumedTrainingIsEqualToTheBitToUninterruptedTraining) {
  TrainingRun uninterrupted(1);
  uninterrupted.train(3);
  save_checkpoint(folder_, uninterrupted.objects(), {.step = 3});
  uninterrupted.train(4);

  TrainingRun resumed(99);
  resumed.train(1);
  const LoadReport report = load_checkpoint(folder_, resumed.objects());
  resumed.train(4);

  EXPECT_EQ(report.checkpoint.step, 3);
  EXPECT_THAT(report.notices, IsEmpty());
  expect_same(resumed, uninterrupted);
  EXPECT_EQ(resumed.loader.value, 7);
  EXPECT_EQ(resumed.custom.value, 21);
  EXPECT_EQ(resumed.optimizer->param_groups()[1].options().get_lr(),
            uninterrupted.optimizer->param_groups()[1].options().get_lr());
}

TEST_F(Checkpoint, HasTheNamesOfTheContract) {
  TrainingRun run(1);
  run.train(1);
  CheckpointObjects objects = run.objects();
  torch::nn::Linear second(2, 2);
  test::Counter scaler;
  objects.models.push_back(second.get());
  objects.schedulers.push_back(&run.custom);
  objects.scaler = &scaler;

  save_checkpoint(folder_, objects);

  EXPECT_THAT(names_in(folder_),
              UnorderedElementsAre("model.safetensors",
                                   "model_1.safetensors",
                                   "optimizer.json",
                                   "optimizer.safetensors",
                                   "scheduler.json",
                                   "scheduler_1.json",
                                   "loader.json",
                                   "scaler.json",
                                   "random_states_0.json",
                                   "random_states_0.safetensors",
                                   "custom_checkpoint_0.json",
                                   "accel_checkpoint.json"));
  EXPECT_THAT(names_in(scratch_.path()), ElementsAre("saved"));
}

TEST_F(Checkpoint, ManifestSaysWhatWasSaved) {
  TrainingRun run(1);
  save_checkpoint(folder_, run.objects(), {.step = 40, .generation = 2});

  const CheckpointInfo info = read_checkpoint_info(folder_);
  EXPECT_EQ(info.step, 40);
  EXPECT_EQ(info.generation, 2);
  EXPECT_EQ(info.world_size, 1);

  const auto manifest = checkpoint::read_manifest(folder_);
  ASSERT_TRUE(manifest.has_value());
  for (const auto& [name, digest] : manifest->files) {
    EXPECT_EQ(checkpoint::read_text_file(folder_ / name).digest, digest) << name;
  }
}

TEST_F(Checkpoint, SavingAgainReplacesTheCheckpointButNothingElse) {
  TrainingRun run(1);
  save_checkpoint(folder_, run.objects(), {.step = 1});
  run.train(1);
  save_checkpoint(folder_, run.objects(), {.step = 2});

  TrainingRun loaded(2);
  EXPECT_EQ(load_checkpoint(folder_, loaded.objects()).checkpoint.step, 2);
  expect_same(loaded, run);
  EXPECT_THAT(names_in(scratch_.path()), ElementsAre("saved"));

  const fs::path foreign = scratch_.path() / "thesis";
  fs::create_directory(foreign);
  std::ofstream(foreign / "chapter1.tex") << "x";
  const Error error = error_of([&] { save_checkpoint(foreign, run.objects()); });
  EXPECT_EQ(error.code(), ErrorCode::kCheckpointExists);
  EXPECT_THAT(error.message(), HasSubstr("is not a checkpoint"));
  EXPECT_THAT(error.remedy(), AllOf(HasSubstr("another name"), Not(HasSubstr("remove"))));
  EXPECT_THAT(names_in(foreign), ElementsAre("chapter1.tex"));
}

TEST_F(Checkpoint, FolderWithoutANameOfItsOwnIsRefused) {
  const test::WorkingFolder working(scratch_.path());
  scratch_.write("notes.txt", "x");
  TrainingRun run(1);
  for (const char* const name : {".", "./", "..", "/"}) {
    const Error error = error_of([&] { save_checkpoint(name, run.objects()); });
    EXPECT_EQ(error.code(), ErrorCode::kCheckpointExists) << name;
    EXPECT_THAT(error.remedy(), HasSubstr("another name")) << name;
  }
  EXPECT_EQ(error_of([&] { save_checkpoint("", run.objects()); }).code(),
            ErrorCode::kInvalidArgument);
  EXPECT_THAT(names_in(scratch_.path()), ElementsAre("notes.txt"));
}

TEST_F(Checkpoint, FileInItsPlaceIsRefusedBeforeAnythingIsWritten) {
  scratch_.write("empty", "");
  fs::create_symlink("loop", scratch_.path() / "loop");
  TrainingRun run(1);
  CheckpointObjects objects = run.objects();
  objects.before_save.emplace_back([](const fs::path&) { ADD_FAILURE() << "the save began"; });
  for (const char* const name : {"empty", "loop"}) {
    const Error error = error_of([&] { save_checkpoint(scratch_.path() / name, objects); });
    EXPECT_EQ(error.code(), ErrorCode::kCheckpointExists) << name;
    EXPECT_THAT(error.message(), HasSubstr("is not a folder")) << name;
  }
  EXPECT_THAT(names_in(scratch_.path()), UnorderedElementsAre("empty", "loop"));

  EXPECT_THAT(
      error_of([&] { load_checkpoint(scratch_.path() / "empty", run.objects()); }).message(),
      HasSubstr("empty is not a folder"));
}

TEST_F(Checkpoint, LinkStaysAndItsTargetIsReplaced) {
  const fs::path disk = scratch_.path() / "disk";
  TrainingRun run(1);
  save_checkpoint(disk / "saved", run.objects(), {.step = 1});
  fs::create_directory(disk / "empty");
  fs::create_directory_symlink("disk/saved", scratch_.path() / "last");
  fs::create_directory_symlink("last", scratch_.path() / "last of all");
  fs::create_directory_symlink(disk / "empty", scratch_.path() / "first");
  fs::create_directory_symlink("disk/none/yet", scratch_.path() / "next");

  for (const char* const name : {"last/", "last of all", "first", "next"}) {
    const CheckpointInfo saved =
        save_checkpoint(scratch_.path() / name, run.objects(), {.step = 2});
    EXPECT_EQ(load_checkpoint(saved.folder, run.objects()).checkpoint.step, 2) << name;
    EXPECT_TRUE(fs::is_symlink(saved.folder)) << name;
  }

  for (const char* const name : {"saved", "empty", "none/yet"})
    EXPECT_EQ(read_checkpoint_info(disk / name).step, 2) << name;
  EXPECT_THAT(names_in(disk), UnorderedElementsAre("saved", "empty", "none"));
}

TEST_F(Checkpoint, RelativeNameStandsForTheFolderOfItsCallWhateverBecomesOfTheWorkingFolder) {
  const test::ScratchFolder elsewhere;
  TrainingRun run(1);
  CheckpointObjects objects = run.objects();
  objects.before_save.emplace_back([&](const fs::path&) { fs::current_path(elsewhere.path()); });
  {
    const test::WorkingFolder working(scratch_.path());
    EXPECT_TRUE(save_checkpoint("one", objects).folder.is_absolute());
  }
  {
    const test::WorkingFolder working(scratch_.path());
    EXPECT_TRUE(async_save_checkpoint("two", objects).wait().folder.is_absolute());
  }

  EXPECT_THAT(names_in(scratch_.path()), UnorderedElementsAre("one", "two"));
  EXPECT_TRUE(fs::is_empty(elsewhere.path()));
}

TEST_F(Checkpoint, TruncatedFileIsNamedWithBothSizes) {
  TrainingRun run(1);
  save_checkpoint(folder_, run.objects());
  const auto bytes = fs::file_size(folder_ / "model.safetensors");
  fs::resize_file(folder_ / "model.safetensors", bytes - 10);

  const Error error = error_of([&] { load_checkpoint(folder_, run.objects()); });

  EXPECT_EQ(error.code(), ErrorCode::kCheckpointIncomplete);
  EXPECT_THAT(error.message(),
              HasSubstr("model.safetensors has " + std::to_string(bytes - 10) +
                        " bytes instead of " + std::to_string(bytes)));
}

TEST_F(Checkpoint, OneChangedBitIsFoundInEveryFile) {
  TrainingRun run(1);
  run.train(1);
  save_checkpoint(folder_, run.objects());

  for (const std::string& name : names_in(folder_)) {
    flip_byte(name, 20);
    const Error error = error_of([&] { load_checkpoint(folder_, run.objects()); });
    EXPECT_EQ(error.code(), ErrorCode::kCheckpointIncomplete) << name << error.what();
    EXPECT_THAT(error.what(), HasSubstr(name)) << name;
    flip_byte(name, 20);
  }
  load_checkpoint(folder_, run.objects());
}

TEST_F(Checkpoint, MissingFilesAreAllNamed) {
  TrainingRun run(1);
  save_checkpoint(folder_, run.objects());
  fs::remove(folder_ / "random_states_0.json");
  fs::remove(folder_ / "scheduler.json");

  const Error error = error_of([&] { load_checkpoint(folder_, run.objects()); });

  EXPECT_EQ(error.code(), ErrorCode::kCheckpointIncomplete);
  EXPECT_THAT(
      error.message(),
      AllOf(HasSubstr("random_states_0.json is missing"), HasSubstr("scheduler.json is missing")));
}

TEST_F(Checkpoint, FolderWithoutManifestIsNoCheckpoint) {
  TrainingRun run(1);
  save_checkpoint(folder_, run.objects());
  fs::remove(folder_ / "accel_checkpoint.json");

  EXPECT_THAT(error_of([&] { load_checkpoint(folder_, run.objects()); }).message(),
              HasSubstr("has no accel_checkpoint.json"));
  EXPECT_THAT(error_of([&] { load_checkpoint(scratch_.path() / "none", run.objects()); }).message(),
              HasSubstr("none does not exist"));
}

TEST_F(Checkpoint, NewerFormatIsRefusedNamingBothVersions) {
  TrainingRun run(1);
  save_checkpoint(folder_, run.objects());
  std::string text = checkpoint::read_text_file(folder_ / "accel_checkpoint.json").text;
  text.replace(text.find("\"version\": 1"), 12, "\"version\": 7");
  std::ofstream(folder_ / "accel_checkpoint.json") << text;

  const Error error = error_of([&] { load_checkpoint(folder_, run.objects()); });

  EXPECT_EQ(error.code(), ErrorCode::kCheckpointVersion);
  EXPECT_THAT(error.message(), AllOf(HasSubstr("version 7"), HasSubstr("up to 2")));
}

TEST_F(Checkpoint, CheckpointOfAnotherModelNamesWhatDiffersAndChangesNothing) {
  TrainingRun wide(1, 9);
  wide.train(1);
  save_checkpoint(folder_, wide.objects());
  TrainingRun run(2);
  TrainingRun untouched(2);

  const Error error = error_of([&] { load_checkpoint(folder_, run.objects()); });

  EXPECT_EQ(error.code(), ErrorCode::kSafetensorsMismatch);
  EXPECT_THAT(error.message(),
              HasSubstr("first.weight (Float[9, 4] in the file, Float[6, 4] in the model)"));
  expect_same(run, untouched);
  EXPECT_EQ(run.custom.value, 0);
}

TEST_F(Checkpoint, OtherNumbersOfObjectsAreListed) {
  TrainingRun run(1);
  save_checkpoint(folder_, run.objects());
  CheckpointObjects fewer = run.objects();
  fewer.optimizers.clear();
  fewer.custom.push_back(&run.loader);

  const Error error = error_of([&] { load_checkpoint(folder_, fewer); });

  EXPECT_EQ(error.code(), ErrorCode::kCheckpointMismatch);
  EXPECT_THAT(error.message(), HasSubstr("1 optimizers (now 0), 1 registered objects (now 2)"));
}

TEST_F(Checkpoint, ObjectThatRefusesItsStateLeavesModelAndOptimizerAlone) {
  TrainingRun run(1);
  run.train(2);
  save_checkpoint(folder_, run.objects());
  TrainingRun other(2);
  TrainingRun untouched(2);
  other.custom.refuses = true;

  const Error error = error_of([&] { load_checkpoint(folder_, other.objects()); });

  EXPECT_THAT(error.what(), HasSubstr("custom_checkpoint_0"));
  expect_same(other, untouched);
  EXPECT_TRUE(other.optimizer->state().empty());
}

TEST_F(Checkpoint, ScalerThatOnlyOneSideHasIsNoticed) {
  TrainingRun run(1);
  save_checkpoint(folder_, run.objects());
  CheckpointObjects objects = run.objects();
  test::Counter scaler;
  objects.scaler = &scaler;

  EXPECT_THAT(load_checkpoint(folder_, objects).notices,
              ElementsAre(HasSubstr("no state for the gradient scaler")));
}

TEST_F(Checkpoint, HooksAddFilesThatTheManifestListsAndSeeThemAgain) {
  TrainingRun run(1);
  CheckpointObjects objects = run.objects();
  objects.before_save.push_back(
      [](const fs::path& folder) { std::ofstream(folder / "vocabulary.txt") << "a b c"; });
  save_checkpoint(folder_, objects);
  EXPECT_EQ(checkpoint::read_manifest(folder_)->files.at("vocabulary.txt").bytes, 5);

  std::string seen;
  objects.before_load.push_back([&](const fs::path& folder) {
    seen = checkpoint::read_text_file(folder / "vocabulary.txt").text;
  });
  load_checkpoint(folder_, objects);
  EXPECT_EQ(seen, "a b c");

  fs::remove(folder_ / "vocabulary.txt");
  EXPECT_THAT(error_of([&] { load_checkpoint(folder_, objects); }).message(),
              HasSubstr("vocabulary.txt is missing"));
}

TEST_F(Checkpoint, HookThatThrowsFailsTheSaveAndLeavesNothing) {
  TrainingRun run(1);
  CheckpointObjects objects = run.objects();
  objects.before_save.push_back([](const fs::path&) { throw std::runtime_error("no vocabulary"); });

  EXPECT_THAT(error_of([&] { save_checkpoint(folder_, objects); }).message(),
              HasSubstr("no vocabulary"));
  EXPECT_TRUE(fs::is_empty(scratch_.path()));
}

}  // namespace
}  // namespace accel::checkpoint_test
