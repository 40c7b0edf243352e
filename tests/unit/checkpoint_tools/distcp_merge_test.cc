// Merging folders of torch.distributed.checkpoint that are made here, good and damaged. Those that PyTorch writes:
// tests/peer/merge_weights.py.

#include "checkpoint_tools/merge/distcp_merge.h"

#include <cstring>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <accel/error.h>
#include <accel/safetensors.h>

#include "checkpoint_tools/formats/torch_file.h"
#include "checkpoint_tools/merge/chunk_copy.h"
#include "checkpoint_tools/merge/tensor_output.h"
#include "runtime/unique_fd.h"
#include "tests/support/faulty_disk.h"
#include "tests/support/peak_memory.h"
#include "tests/unit/checkpoint_tools/saved_archive.h"

namespace accel::launcher::distcp_merge_test {
namespace {

namespace fs = std::filesystem;
using namespace accel::test;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

Result<MergeCount> merge(const ScratchFolder& folder, FaultyDisk& disk) {
  const auto metadata = read_distcp_metadata(folder.path());
  if (!metadata) return metadata.error();
  return merge_distcp(folder.path(),
                      *metadata,
                      folder.file("out/model.safetensors"),
                      WeightsFormat::kSafetensors,
                      disk);
}

std::string message_of(const ScratchFolder& folder) {
  FaultyDisk disk;
  const auto count = merge(folder, disk);
  return count ? "no error" : count.error().message();
}

std::vector<fs::path> results(const ScratchFolder& folder) {
  std::vector<fs::path> names;
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(folder.path() / "out", ignored))
    names.push_back(entry.path().filename());
  return names;
}

// The only tensor of the result.
std::vector<float> merged_floats(const ScratchFolder& folder) {
  std::ifstream file(folder.file("out/model.safetensors"), std::ios::binary);
  const std::string bytes{std::istreambuf_iterator<char>(file), {}};
  const auto length = safetensors::header_length(std::as_bytes(std::span(bytes)), bytes.size());
  if (!length) return {};
  const std::string data = bytes.substr(safetensors::kPrefixBytes + *length);
  std::vector<float> values(data.size() / sizeof(float));
  std::memcpy(values.data(), data.data(), values.size() * sizeof(float));
  return values;
}

FloatTensor row_major(std::vector<std::uint64_t> shape, const std::vector<float>& values) {
  std::vector<std::uint64_t> strides(shape.size(), 1);
  for (std::size_t i = shape.size(); i-- > 1;) strides[i - 1] = strides[i] * shape[i];
  return {.shape = std::move(shape), .strides = std::move(strides), .storage = floats(values)};
}

TEST(DistcpMerge, PutsChunksWhereTheyBelong) {
  const ScratchFolder folder;
  write_checkpoint(folder,
                   {2, 3},
                   {{{0, 2}, {2, 1}, saved(row_major({2, 1}, {3, 6}))},
                    {{0, 0}, {2, 2}, saved(row_major({2, 2}, {1, 2, 4, 5}))}});
  FaultyDisk disk;

  const auto count = merge(folder, disk);

  ASSERT_TRUE(count) << count.error().what();
  EXPECT_EQ(count->tensors, 1);
  EXPECT_EQ(count->bytes, 24);
  EXPECT_THAT(merged_floats(folder), ElementsAre(1, 2, 3, 4, 5, 6));
}

TEST(DistcpMerge, PicksElementsByTheirStrides) {
  const ScratchFolder folder;
  const FloatTensor transposed{
      .shape = {2, 3}, .strides = {1, 2}, .first = 1, .storage = floats({0, 1, 4, 2, 5, 3, 6, 9})};
  write_checkpoint(folder, {2, 3}, {{{0, 0}, {2, 3}, saved(transposed)}});
  FaultyDisk disk;

  ASSERT_TRUE(merge(folder, disk));
  EXPECT_THAT(merged_floats(folder), ElementsAre(1, 2, 3, 4, 5, 6));
}

// Two numbers in a storage of 8 GiB, which is a hole.
TEST(DistcpMerge, ElementsThatLieFarApartDoNotTakeTheirStoragesMemory) {
  constexpr std::uint64_t kBytes = std::uint64_t{8} << 30;
  const UniqueFd storage(::memfd_create("storage", MFD_CLOEXEC));
  ASSERT_EQ(::ftruncate(storage.get(), static_cast<off_t>(kBytes)), 0);
  const ScratchFolder folder;
  FaultyDisk disk;
  TensorOutput output(disk,
                      folder.file("out"),
                      {{"w", safetensors::Dtype::kF32, {2}}},
                      WeightsFormat::kSafetensors);
  ChunkCopy copy([&output](std::uint64_t offset, std::span<const std::byte> bytes) {
    output.write(offset, bytes);
  });
  const auto run = [&](std::uint64_t stride) {
    copy.run({.dtype = safetensors::Dtype::kF32,
              .shape = {2},
              .strides = {stride},
              .first = 1000,
              .storage = {.fd = storage.get(), .path = "storage", .begin = 0, .size = kBytes}},
             {.offsets = {0}, .sizes = {2}},
             std::vector<std::uint64_t>{2},
             output.place_of("w"));
  };
  const PeakMemory peak;
  run(1000);
  try {
    run(kBytes / 8);
    ADD_FAILURE() << "it was copied";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kUnsupported);
    EXPECT_THAT(error.message(), HasSubstr("a tensor of 8 bytes that lie over 4294967300"));
  }
  if (PeakMemory::is_the_programs_own()) {
    EXPECT_LE(peak.growth_bytes(), 64 << 20);
  }
}

TEST(DistcpMerge, ADirectoryThatIsTooLargeForATensorIsRefused) {
  std::vector<ZipEntry> entries = {{"a/data.pkl", pickle_of("N")}};
  for (int i = 0; i < 1000; ++i) entries.push_back({"a/" + std::to_string(i), ""});
  const ScratchFolder folder;
  write_checkpoint(folder, {1}, {{{0}, {1}, zip_of(entries)}});
  EXPECT_THAT(message_of(folder), HasSubstr("bytes, expected at most 65536"));
}

TEST(DistcpMerge, ChunksThatLeaveAHoleOrOverlapAreRefused) {
  const auto chunk = [](std::uint64_t begin, std::uint64_t rows) {
    return SavedChunk{{begin}, {rows}, saved(row_major({rows}, std::vector<float>(rows, 1.F)))};
  };
  const auto message = [&](const std::vector<SavedChunk>& chunks) {
    const ScratchFolder folder;
    write_checkpoint(folder, {4}, chunks);
    return message_of(folder);
  };
  EXPECT_EQ(message({chunk(0, 2), chunk(2, 2)}), "no error");
  EXPECT_THAT(message({chunk(0, 2), chunk(3, 1)}), HasSubstr("3 of its 4 elements"));
  EXPECT_THAT(message({chunk(0, 3), chunk(2, 2)}), HasSubstr("overlap"));
  EXPECT_THAT(message({chunk(0, 2), chunk(2, 3)}), HasSubstr("not within"));
  EXPECT_THAT(message({}), HasSubstr("0 of its 4 elements"));
}

TEST(DistcpMerge, ATensorThatIsNotWhatTheMetadataSaysIsRefused) {
  const auto message = [](const FloatTensor& tensor) {
    const ScratchFolder folder;
    write_checkpoint(folder, {4}, {{{0}, {4}, saved(tensor)}});
    return message_of(folder);
  };
  EXPECT_EQ(message(row_major({4}, {1, 2, 3, 4})), "no error");
  EXPECT_THAT(message(row_major({2, 2}, {1, 2, 3, 4})), HasSubstr("another shape or dtype"));
  EXPECT_THAT(message({.shape = {4}, .strides = {2}, .storage = floats({1, 2, 3, 4})}),
              HasSubstr("reaches beyond its storage of 16 bytes"));
  EXPECT_THAT(message({.shape = {4}, .strides = {1}, .first = 1, .storage = floats({1, 2, 3, 4})}),
              HasSubstr("reaches beyond"));
  EXPECT_THAT(message({.shape = {4}, .strides = {1ull << 62}, .storage = floats({1, 2, 3, 4})}),
              HasSubstr("reaches beyond"));
}

TEST(DistcpMerge, AFileOutsideOfTheFolderIsRefused) {
  const std::vector<SavedChunk> chunks = {{{0}, {1}, saved(row_major({1}, {1}))}};
  for (const std::string name : {"../secret", "/etc/passwd", "", ".."}) {
    const auto metadata =
        parse_distcp_metadata(metadata_pickle("w", tensor_ops("w", {1}, chunks, name, 0)));
    ASSERT_FALSE(metadata);
    EXPECT_THAT(metadata.error().message(), HasSubstr("is no name of a file beside it"));
  }
}

TEST(DistcpMerge, PlacesBeyondTheFileAreRefused) {
  const std::vector<SavedChunk> chunks = {{{0}, {1}, saved(row_major({1}, {1}))}};
  for (const std::uint64_t begin : {std::uint64_t{1} << 40, std::uint64_t{1} << 62}) {
    const ScratchFolder folder;
    write_checkpoint(folder, {1}, chunks);
    folder.write(".metadata",
                 metadata_pickle("w", tensor_ops("w", {1}, chunks, "__0_0.distcp", begin)));
    EXPECT_THAT(message_of(folder), HasSubstr("has no"));
  }
}

TEST(DistcpMerge, EveryTruncationIsAnError) {
  const std::vector<SavedChunk> chunks = {{{0}, {2}, saved(row_major({2}, {1, 2}))}};
  const std::string metadata =
      metadata_pickle("w", tensor_ops("w", {2}, chunks, "__0_0.distcp", 0));
  ASSERT_TRUE(parse_distcp_metadata(metadata));
  for (std::size_t length = 0; length < metadata.size(); ++length)
    EXPECT_FALSE(parse_distcp_metadata(metadata.substr(0, length))) << length;

  const std::string& archive = chunks[0].archive;
  const UniqueFd file(::memfd_create("archive", MFD_CLOEXEC));
  ASSERT_EQ(::write(file.get(), archive.data(), archive.size()), archive.size());
  FileSlice slice{.fd = file.get(), .path = "file", .begin = 0, .size = archive.size()};
  ASSERT_TRUE(read_saved_tensor(slice));
  for (slice.size = 0; slice.size < archive.size(); ++slice.size)
    EXPECT_FALSE(read_saved_tensor(slice)) << slice.size;
}

TEST(DistcpMerge, AFileThatIsCutShortLeavesNothing) {
  const ScratchFolder folder;
  write_checkpoint(folder, {2}, {{{0}, {2}, saved(row_major({2}, {1, 2}))}});
  fs::resize_file(folder.file("__0_0.distcp"), fs::file_size(folder.file("__0_0.distcp")) - 1);
  EXPECT_THAT(message_of(folder), HasSubstr("ends at byte"));
  fs::remove(folder.file("__0_0.distcp"));
  EXPECT_THAT(message_of(folder), HasSubstr("__0_0.distcp, which the metadata names"));
  EXPECT_THAT(results(folder), IsEmpty());
}

TEST(DistcpMerge, AFullDiskLeavesNothingAndTheOldResult) {
  const ScratchFolder folder;
  write_checkpoint(folder, {2}, {{{0}, {2}, saved(row_major({2}, {1, 2}))}});
  folder.write("out/model.safetensors", "old");
  FaultyDisk disk;
  disk.set_free_bytes(16);

  const auto count = merge(folder, disk);

  ASSERT_FALSE(count);
  EXPECT_EQ(count.error().code(), ErrorCode::kDiskFull);
  EXPECT_THAT(results(folder), ElementsAre("model.safetensors"));
  EXPECT_EQ(fs::file_size(folder.file("out/model.safetensors")), 3);
}

// The process is stopped after each step: the result is there and whole, or its name is not there.
TEST(DistcpMerge, AProcessThatDiesLeavesNoHalfResult) {
  for (int steps = 0;; ++steps) {
    const ScratchFolder folder;
    write_checkpoint(folder, {2}, {{{0}, {2}, saved(row_major({2}, {1, 2}))}});
    FaultyDisk disk;
    disk.stop_after(steps);
    const auto count = merge(folder, disk);
    if (fs::exists(folder.file("out/model.safetensors"))) {
      EXPECT_THAT(merged_floats(folder), ElementsAre(1, 2)) << steps;
    } else {
      EXPECT_FALSE(count) << steps;
    }
    if (count) break;
    ASSERT_LT(steps, 100);
  }
}

// 32 MiB of zeros, most of which is no disk: what is in memory at one time does not grow with it.
TEST(DistcpMerge, MemoryStaysSmallWhateverTheSize) {
  constexpr std::uint64_t kElements = 8 << 20;
  const ScratchFolder folder;
  // The archive with its storage stretched: a hole in the file.
  const std::string pickle = pickle_of(tensor_op({.shape = {kElements}, .strides = {1}}));
  const std::string head = zip_of({{"a/data.pkl", pickle}}, false);
  std::string local = head.substr(0, head.find("PK\x01\x02"));
  std::string directory = head.substr(local.size(), head.find("PK\x05\x06") - local.size());
  const std::string name = "a/data/0";
  directory += "PK\x01\x02" + little(0, 16) + little(kElements * 4, 4) + little(kElements * 4, 4) +
               little(name.size(), 2) + little(0, 12) + little(local.size(), 4) + name;
  local += "PK\x03\x04" + little(0, 22) + little(name.size(), 2) + little(0, 2) + name;
  const std::uint64_t begin = local.size() + kElements * 4;
  const std::string tail = directory + "PK\x05\x06" + little(0, 4) + little(2, 2) + little(2, 2) +
                           little(directory.size(), 4) + little(begin, 4) + little(0, 2);
  folder.write("__0_0.distcp", local);
  fs::resize_file(folder.file("__0_0.distcp"), begin);
  std::ofstream(folder.file("__0_0.distcp"), std::ios::binary | std::ios::app) << tail;
  SavedChunk chunk{{0}, {kElements}, ""};
  TensorOps ops = tensor_ops("w", {kElements}, {chunk}, "__0_0.distcp", 0);
  // The length of what is not in memory here.
  const std::string no_length = text_op("length") + int_op(0);
  std::string& info = ops.storage[0].second;
  info.replace(
      info.find(no_length), no_length.size(), text_op("length") + int_op(begin + tail.size()));
  folder.write(".metadata", metadata_pickle("w", ops));
  const auto metadata = read_distcp_metadata(folder.path());
  ASSERT_TRUE(metadata) << metadata.error().what();

  FaultyDisk disk;
  const auto count = merge_distcp(folder.path(),
                                  *metadata,
                                  folder.file("out/model.safetensors"),
                                  WeightsFormat::kSafetensors,
                                  disk);

  ASSERT_TRUE(count) << count.error().what();
  EXPECT_EQ(count->bytes, kElements * 4);
  EXPECT_EQ(count->peak_bytes, kCopyBytes);
}

}  // namespace
}  // namespace accel::launcher::distcp_merge_test
