// The command as a whole, and what --remove_checkpoint_dir takes away: never more than what was merged. Folders that PyTorch
// saved: tests/peer/merge_weights.py.

#include "launcher/commands/merge_weights.h"

#include <set>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <accel/safetensors.h>

#include "runtime/checkpoint/hashed_file.h"
#include "runtime/checkpoint/manifest.h"
#include "tests/support/scratch_folder.h"

namespace accel::launcher::merge_weights_test {
namespace {

namespace fs = std::filesystem;
using checkpoint::Manifest;
using test::ScratchFolder;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::UnorderedElementsAre;

std::string file_of(const std::string& tensor, const std::string& data) {
  const auto layout =
      safetensors::plan_layout({{tensor, safetensors::Dtype::kU8, {data.size()}}}, {});
  return layout ? layout->bytes + data : "";
}

void write_shards(const ScratchFolder& folder) {
  folder.write("model/model.safetensors.index.json",
               R"({"weight_map": {"a": "one.safetensors", "b": "two.safetensors"}})");
  folder.write("model/one.safetensors", file_of("a", "first"));
  folder.write("model/two.safetensors", file_of("b", "2nd"));
}

// A checkpoint with a model, and files of these names besides.
void write_checkpoint(const ScratchFolder& folder, const std::set<std::string>& others) {
  Manifest manifest;
  manifest.objects.models = 1;
  std::set<std::string> names = others;
  names.insert("model.safetensors");
  for (const std::string& name : names) {
    const std::string bytes = file_of("a", "first");
    folder.write("model/" + name, bytes);
    manifest.files[name] = {.bytes = bytes.size(),
                            .xxh3 = checkpoint::xxh3(std::as_bytes(std::span(bytes)))};
  }
  folder.write("model/accel_checkpoint.json",
               checkpoint::encode_manifest(manifest, {.accel = "1", .torch = "2"}));
}

struct Outcome {
  int status = 0;
  std::string said;  // on stderr
};

Outcome merge_and_remove(const ScratchFolder& folder) {
  ::testing::internal::CaptureStderr();
  const int status =
      merge_weights_command({folder.file("model"), folder.file("out"), "--remove_checkpoint_dir"});
  return {.status = status, .said = ::testing::internal::GetCapturedStderr()};
}

std::set<std::string> names_in(const fs::path& folder) {
  std::set<std::string> names;
  std::error_code not_there;
  for (const auto& entry : fs::directory_iterator(folder, not_there))
    names.insert(entry.path().filename());
  return names;
}

TEST(MergeWeights, AFolderOfShardsGoesWhenNothingElseIsInIt) {
  const ScratchFolder folder;
  write_shards(folder);

  const Outcome outcome = merge_and_remove(folder);

  EXPECT_EQ(outcome.status, 0) << outcome.said;
  EXPECT_FALSE(fs::exists(folder.file("model")));
  EXPECT_TRUE(fs::exists(folder.file("out/model.safetensors")));
}

TEST(MergeWeights, WhatLiesBesideShardsStaysAndIsNamed) {
  const ScratchFolder folder;
  write_shards(folder);
  folder.write("model/config.json", "{}");
  folder.write("model/tokenizer/vocab.txt", "a");

  const Outcome outcome = merge_and_remove(folder);

  EXPECT_EQ(outcome.status, 0) << outcome.said;
  EXPECT_THAT(names_in(folder.file("model")), UnorderedElementsAre("config.json", "tokenizer"));
  EXPECT_THAT(names_in(folder.file("model/tokenizer")), UnorderedElementsAre("vocab.txt"));
  EXPECT_THAT(outcome.said, HasSubstr("which also holds config.json, tokenizer"));
}

TEST(MergeWeights, ShardsThatCannotBeMergedAllStay) {
  const ScratchFolder folder;
  write_shards(folder);
  folder.write("model/two.safetensors", "damaged");

  EXPECT_NE(merge_and_remove(folder).status, 0);

  EXPECT_EQ(names_in(folder.file("model")).size(), 3);
}

TEST(MergeWeights, ACheckpointOfModelsAloneGoes) {
  const ScratchFolder folder;
  write_checkpoint(folder, {});

  const Outcome outcome = merge_and_remove(folder);

  EXPECT_EQ(outcome.status, 0) << outcome.said;
  EXPECT_FALSE(fs::exists(folder.file("model")));
  EXPECT_TRUE(fs::exists(folder.file("out/model.safetensors")));
}

TEST(MergeWeights, ACheckpointWithMoreThanModelsIsRefusedByName) {
  const ScratchFolder folder;
  write_checkpoint(folder, {"optimizer.safetensors", "rng_0.json"});
  folder.write("model/notes.txt", "not of the checkpoint");

  const Outcome outcome = merge_and_remove(folder);

  EXPECT_EQ(outcome.status, 1);
  EXPECT_THAT(outcome.said,
              AllOf(HasSubstr("notes.txt, optimizer.safetensors, rng_0.json"),
                    HasSubstr("merge without --remove_checkpoint_dir")));
  EXPECT_EQ(names_in(folder.file("model")).size(), 5);
  EXPECT_FALSE(fs::exists(folder.file("out")));
}

}  // namespace
}  // namespace accel::launcher::merge_weights_test
