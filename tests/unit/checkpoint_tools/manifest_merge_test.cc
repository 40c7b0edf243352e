// Models taken out of checkpoints of accel, made here with the code that ranks write with. Checkpoints that ranks have saved:
// tests/unit/libaccel/checkpoint/.

#include "checkpoint_tools/merge/manifest_merge.h"

#include <algorithm>
#include <fstream>
#include <iterator>

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <accel/error.h>
#include <accel/safetensors.h>

#include "checkpoint_tools/formats/zip_archive.h"
#include "runtime/checkpoint/file_ranges.h"
#include "runtime/checkpoint/hashed_file.h"
#include "tests/support/faulty_disk.h"
#include "tests/support/scratch_folder.h"

namespace accel::launcher::manifest_merge_test {
namespace {

namespace fs = std::filesystem;
using checkpoint::Manifest;
using test::FaultyDisk;
using test::ScratchFolder;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::string content_of(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

// A safetensors file of `elements` bytes that are not all the same.
std::string model_bytes(std::uint64_t elements) {
  const auto layout =
      safetensors::plan_layout({{"layer.weight", safetensors::Dtype::kU8, {elements}}}, {});
  if (!layout) return "";
  std::string bytes = layout->bytes;
  for (std::uint64_t i = 0; i < elements; ++i) bytes += static_cast<char>(i * 7 + i / 251);
  return bytes;
}

// As two ranks write it: everything from `cut` on is rank 1's.
void write_ranges(const ScratchFolder& folder,
                  const std::string& name,
                  const std::string& bytes,
                  Manifest& manifest) {
  FaultyDisk disk;
  const std::string path = folder.write("checkpoint/" + name, bytes);
  const fs::path file_path = path;
  const UniqueFd file = disk.open_file(file_path);
  const std::uint64_t cut = bytes.size() / 3;
  for (int rank = 0; rank < 2; ++rank) {
    checkpoint::RangeWriter writer(disk, file.get(), file_path, rank);
    const std::string part = rank == 0 ? bytes.substr(0, cut) : bytes.substr(cut);
    writer.append(rank == 0 ? 0 : cut, std::as_bytes(std::span(part)));
    for (const checkpoint::FileRange& range : writer.finish())
      manifest.ranges[name].push_back(range);
  }
  manifest.files[name] = {.bytes = bytes.size()};
}

void write_whole(const ScratchFolder& folder,
                 const std::string& name,
                 const std::string& bytes,
                 Manifest& manifest) {
  folder.write("checkpoint/" + name, bytes);
  manifest.files[name] = {.bytes = bytes.size(),
                          .xxh3 = checkpoint::xxh3(std::as_bytes(std::span(bytes)))};
}

void write_manifest(const ScratchFolder& folder, Manifest manifest, int models) {
  manifest.version = checkpoint::version_to_write(!manifest.ranges.empty());
  manifest.objects.models = models;
  folder.write("checkpoint/accel_checkpoint.json",
               checkpoint::encode_manifest(manifest, {.accel = "1", .torch = "2"}));
}

Result<MergeCount> merge(const ScratchFolder& folder) {
  FaultyDisk disk;
  return merge_manifest(
      folder.file("checkpoint"), folder.file("out"), WeightsFormat::kSafetensors, disk);
}

TEST(ManifestMerge, ModelsComeOutAsTheyAreAndNothingElse) {
  const ScratchFolder folder;
  Manifest manifest;
  const std::string first = model_bytes(9 << 20);  // three ranges
  const std::string second = model_bytes(5);
  write_ranges(folder, "model.safetensors", first, manifest);
  write_whole(folder, "model_1.safetensors", second, manifest);
  write_whole(folder, "optimizer.safetensors", second, manifest);
  write_manifest(folder, manifest, 2);

  const auto count = merge(folder);

  ASSERT_TRUE(count) << count.error().what();
  EXPECT_EQ(count->tensors, 2);
  EXPECT_TRUE(content_of(folder.file("out/model.safetensors")) == first);
  EXPECT_TRUE(content_of(folder.file("out/model_1.safetensors")) == second);
  EXPECT_FALSE(fs::exists(folder.file("out/optimizer.safetensors")));
  EXPECT_LE(count->peak_bytes, checkpoint::kRangeBytes);
}

// The entry of a tensor, by its number.
std::string stored(const std::string& path, int tensor) {
  const UniqueFd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  const FileSlice all{.fd = file.get(), .path = path, .begin = 0, .size = fs::file_size(path)};
  const auto archive = ZipArchive::open(all, 1 << 20);
  if (!archive) return archive.error().message();
  const auto* entry = archive->find("pytorch_model/data/" + std::to_string(tensor));
  if (entry == nullptr) return "no entry";
  const auto slice = archive->bytes_of(*entry);
  return slice ? *slice->text(0, slice->size) : slice.error().message();
}

// Tensors of all alignments, over the boundaries of ranges and pieces.
TEST(ManifestMerge, TensorsComeOutAsTorchSavesThem) {
  const ScratchFolder folder;
  const std::vector<std::uint64_t> sizes = {5 << 20, 3, 0, (4 << 20) + 1, 1};
  std::vector<safetensors::TensorSpec> specs;
  for (std::size_t i = 0; i < sizes.size(); ++i)
    specs.push_back({"w" + std::to_string(i), safetensors::Dtype::kU8, {sizes[i]}});
  std::string bytes = safetensors::plan_layout(specs, {})->bytes;
  std::vector<std::string> values;
  for (const std::uint64_t size : sizes) {
    values.emplace_back();
    for (std::uint64_t i = 0; i < size; ++i)
      values.back() += static_cast<char>(i * 11 + i / 253 + size);
    bytes += values.back();
  }
  Manifest manifest;
  write_ranges(folder, "model.safetensors", bytes, manifest);
  write_whole(folder, "model_1.safetensors", bytes, manifest);
  write_manifest(folder, manifest, 2);

  FaultyDisk disk;
  const auto count =
      merge_manifest(folder.file("checkpoint"), folder.file("out"), WeightsFormat::kTorch, disk);

  ASSERT_TRUE(count) << count.error().what();
  EXPECT_EQ(count->tensors, 2 * sizes.size());
  for (const std::string name : {"out/pytorch_model.bin", "out/pytorch_model_1.bin"})
    for (std::size_t i = 0; i < values.size(); ++i)
      EXPECT_TRUE(stored(folder.file(name), static_cast<int>(i)) == values[i]) << name << i;
}

TEST(ManifestMerge, DamageIsFoundAndLeavesNoResult) {
  for (const bool has_ranges : {false, true}) {
    const ScratchFolder folder;
    Manifest manifest;
    std::string bytes = model_bytes(100);
    has_ranges ? write_ranges(folder, "model.safetensors", bytes, manifest)
               : write_whole(folder, "model.safetensors", bytes, manifest);
    write_manifest(folder, manifest, 1);
    bytes.back() ^= 1;
    folder.write("checkpoint/model.safetensors", bytes);

    const auto count = merge(folder);

    ASSERT_FALSE(count);
    EXPECT_EQ(count.error().code(), ErrorCode::kCheckpointIncomplete);
    EXPECT_THAT(count.error().message(), HasSubstr("is damaged"));
    if (has_ranges) {
      EXPECT_THAT(count.error().message(), AllOf(HasSubstr("layer.weight"), HasSubstr("rank 1")));
    }
    EXPECT_FALSE(fs::exists(folder.file("out")));
  }
}

TEST(ManifestMerge, AFileOfAnotherSizeIsNamed) {
  const ScratchFolder folder;
  Manifest manifest;
  write_whole(folder, "model.safetensors", model_bytes(100), manifest);
  write_manifest(folder, manifest, 1);
  folder.write("checkpoint/model.safetensors", "short");
  const auto count = merge(folder);
  ASSERT_FALSE(count);
  EXPECT_THAT(count.error().message(), HasSubstr("has 5 bytes instead of"));
}

TEST(ManifestMerge, ACheckpointWithoutAModelIsRefused) {
  const ScratchFolder folder;
  write_manifest(folder, {}, 0);
  const auto count = merge(folder);
  ASSERT_FALSE(count);
  EXPECT_THAT(count.error().message(), HasSubstr("holds no model"));
}

}  // namespace
}  // namespace accel::launcher::manifest_merge_test
