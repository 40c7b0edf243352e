// Ranges of one file, written by several and read back in other cuts.

#include "runtime/checkpoint/file_ranges.h"

#include <algorithm>
#include <fstream>
#include <numeric>
#include <random>

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <accel/error.h>

#include "runtime/checkpoint/hashed_file.h"
#include "tests/support/faulty_disk.h"
#include "tests/support/scratch_folder.h"

namespace accel::checkpoint::file_ranges_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

std::string any_place(std::uint64_t, std::uint64_t) {
  return "some tensor";
}

// A file of random bytes that two ranks have written, in pieces of random lengths.
struct Written {
  explicit Written(std::size_t size, unsigned seed = 1) : bytes(size) {
    std::mt19937_64 random(seed);
    for (std::byte& value : bytes) value = static_cast<std::byte>(random());
    FileSystem& disk = real_file_system();
    disk.reserve(disk.create_file(path).get(), size, path);
    for (int rank = 0; rank < 2; ++rank) {
      const UniqueFd fd = disk.open_file(path);
      RangeWriter writer(disk, fd.get(), path, rank);
      std::mt19937_64 cuts(seed + 1);  // the same for both
      for (std::size_t begin = 0; begin < size;) {
        const std::size_t length = std::min<std::size_t>(size - begin, 1 + cuts() % (size / 5 + 1));
        if ((cuts() & 1) == static_cast<unsigned>(rank))
          writer.append(begin, std::span(bytes).subspan(begin, length));
        begin += length;
      }
      for (const FileRange& range : writer.finish()) ranges.push_back(range);
    }
  }

  std::vector<std::byte> read(std::uint64_t begin, std::size_t length) const {
    std::vector<std::byte> out(length);
    const InputFile file(path);
    read_verified(file.fd(), path, ranges, {{begin, out}}, any_place);
    return out;
  }

  void overwrite(std::uint64_t begin, std::span<const std::byte> with) const {
    std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(static_cast<std::streamoff>(begin));
    file.write(reinterpret_cast<const char*>(with.data()),
               static_cast<std::streamsize>(with.size()));
  }

  test::ScratchFolder scratch;
  std::filesystem::path path = scratch.path() / "file";
  std::vector<std::byte> bytes;
  std::vector<FileRange> ranges;
};

TEST(FileRanges, AreBegunByTheDeviceAsTheyAreWritten) {
  const test::ScratchFolder scratch;
  const std::filesystem::path path = scratch.path() / "file";
  const std::vector<std::byte> bytes(std::size_t{9} << 20);
  test::FaultyDisk disk;
  const UniqueFd fd = disk.create_file(path);
  RangeWriter writer(disk, fd.get(), path, 0);

  writer.append(100, bytes);
  EXPECT_EQ(disk.bytes_started(), 2 * kRangeBytes - 100);
  EXPECT_EQ(writer.finish().size(), 3u);
  EXPECT_EQ(disk.bytes_started(), bytes.size()) << "the rest of the last range is large enough";
  RangeWriter small(disk, fd.get(), path, 0);
  small.append(20 << 20, std::span(bytes).first(1000));
  EXPECT_EQ(small.finish().size(), 1u);
  EXPECT_EQ(disk.bytes_started(), bytes.size());

  OutputFile whole(disk, scratch.path() / "whole");
  whole.append("a head");
  whole.append(bytes);
  whole.append("a tail");
  const FileDigest digest = whole.finish();
  EXPECT_EQ(digest.bytes, bytes.size() + 12);
  EXPECT_EQ(disk.bytes_started(), bytes.size() + digest.bytes);
  InputFile read(scratch.path() / "whole");
  EXPECT_EQ(read.digest_of_rest(), digest);
}

TEST(FileRanges, AreReadBackInAnyCut) {
  for (const std::size_t size : {std::size_t{1}, std::size_t{5000}, std::size_t{9} << 20}) {
    Written written(size);
    ASSERT_TRUE(sort_and_check(written.ranges, size).has_value());
    std::mt19937_64 random(3);
    for (int round = 0; round < 20; ++round) {
      const std::uint64_t begin = random() % size;
      const std::size_t length = 1 + random() % (size - begin);
      EXPECT_TRUE(std::ranges::equal(written.read(begin, length),
                                     std::span(written.bytes).subspan(begin, length)));
    }
  }
}

TEST(FileRanges, AreReadBackIntoManyDestinationsAtOnce) {
  Written written(std::size_t{5} << 20);
  ASSERT_TRUE(sort_and_check(written.ranges, written.bytes.size()).has_value());
  std::vector<std::byte> out(written.bytes.size());
  std::vector<WantedBytes> wanted;
  std::mt19937_64 random(4);
  for (std::size_t begin = 0; begin < out.size();) {
    const std::size_t length = std::min<std::size_t>(out.size() - begin, 1 + random() % 70'000);
    wanted.push_back({begin, std::span(out).subspan(begin, length)});
    begin += length;
  }
  std::shuffle(wanted.begin(), wanted.end(), random);

  const InputFile file(written.path);
  read_verified(file.fd(), written.path, written.ranges, wanted, any_place);

  EXPECT_TRUE(out == written.bytes);
}

TEST(FileRanges, AreCutAtMultiplesOfTheirLimit) {
  Written written(3 * kRangeBytes);

  for (const FileRange& range : written.ranges)
    EXPECT_EQ(range.begin / kRangeBytes, (range.end() - 1) / kRangeBytes);
}

TEST(FileRanges, ADamagedOneIsNamedWithItsRankWhenItIsRead) {
  Written written(5000);
  ASSERT_TRUE(sort_and_check(written.ranges, 5000).has_value());
  const FileRange& range = written.ranges.at(1);
  const std::byte other = ~written.bytes[range.begin];
  written.overwrite(range.begin, {&other, 1});

  EXPECT_NO_THROW((void)written.read(0, range.begin));
  try {
    (void)written.read(0, 5000);
    FAIL() << "the damage was not seen";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kCheckpointIncomplete);
    EXPECT_THAT(error.message(),
                AllOf(HasSubstr("bytes " + std::to_string(range.begin) + " to " +
                                std::to_string(range.end()) + " (some tensor)"),
                      HasSubstr("the part of rank " + std::to_string(range.rank))));
  }
}

TEST(FileRanges, OneThatWasSwappedForAnotherNamesBoth) {
  Written written(2 * kRangeBytes, 7);
  written.ranges.clear();  // two ranges of one length
  for (const std::uint64_t begin : {std::uint64_t{0}, kRangeBytes}) {
    written.ranges.push_back(
        {begin, kRangeBytes, 0, xxh3(std::span(written.bytes).subspan(begin, kRangeBytes))});
  }
  written.overwrite(0, std::span(written.bytes).subspan(kRangeBytes));

  try {
    (void)written.read(0, 10);
    FAIL() << "the swap was not seen";
  } catch (const Error& error) {
    EXPECT_THAT(error.message(), HasSubstr("they are those of bytes 4194304 to 8388608"));
  }
}

TEST(FileRanges, ATruncatedFileSaysWhereItEnds) {
  Written written(5000);
  ASSERT_TRUE(sort_and_check(written.ranges, 5000).has_value());
  std::filesystem::resize_file(written.path, 4999);

  try {
    (void)written.read(0, 5000);
    FAIL() << "the end was not seen";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kCheckpointIncomplete);
    EXPECT_THAT(error.message(), HasSubstr("ends before byte 4999"));
  }
}

TEST(FileRanges, HolesAndOverlapsAreNamed) {
  const auto fault = [](std::vector<FileRange> ranges) {
    const Result<void> checked = sort_and_check(ranges, 100);
    return checked ? std::string() : checked.error().message();
  };

  EXPECT_EQ(fault({{50, 50, 0, 0}, {0, 50, 1, 0}}), "");
  EXPECT_EQ(fault({{0, 50, 0, 0}}), "nobody has written bytes 50 to 100");
  EXPECT_EQ(fault({{10, 90, 0, 0}}), "nobody has written bytes 0 to 10");
  EXPECT_EQ(fault({{0, 60, 0, 0}, {50, 50, 1, 0}}), "two ranks have written bytes 50 to 60");
  EXPECT_EQ(fault({{0, 101, 0, 0}}), "101 bytes from byte 0 on are no range of a file of 100");
  EXPECT_EQ(fault({{0, 0, 0, 0}, {0, 100, 0, 0}}),
            "0 bytes from byte 0 on are no range of a file of 100");
}

}  // namespace
}  // namespace accel::checkpoint::file_ranges_test
