// Archives, small and beyond every limit of zip's first version, read back by ZipArchive. Python and PyTorch read them in
// tests/peer/merge_weights.py.

#include "checkpoint_tools/formats/zip_layout.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include "checkpoint_tools/formats/zip_archive.h"
#include "runtime/unique_fd.h"

namespace accel::launcher::zip_layout_test {
namespace {

using Items = std::vector<ZipLayout::Item>;
using ::testing::HasSubstr;
using ::testing::Not;

// A file with the headers and the tail; what entries hold is a hole.
UniqueFd sparse_file(const ZipLayout& layout) {
  UniqueFd file(::memfd_create("archive", MFD_CLOEXEC));
  std::vector<std::uint32_t> checksums;
  for (std::size_t i = 0; i < layout.count(); ++i) {
    checksums.push_back(static_cast<std::uint32_t>(i));
    const std::string header = layout.header(i, checksums.back());
    if (::pwrite(
            file.get(), header.data(), header.size(), static_cast<off_t>(layout.header_of(i))) !=
        static_cast<ssize_t>(header.size()))
      ADD_FAILURE() << "header " << i;
  }
  const std::string tail = layout.tail(checksums);
  if (::pwrite(file.get(), tail.data(), tail.size(), static_cast<off_t>(layout.tail_begin())) !=
      static_cast<ssize_t>(tail.size()))
    ADD_FAILURE() << "tail";
  EXPECT_EQ(layout.tail_begin() + tail.size(), layout.bytes());
  return file;
}

void expect_read_back(const Items& items) {
  const ZipLayout layout(items);
  const UniqueFd file = sparse_file(layout);
  const auto archive = ZipArchive::open(
      {.fd = file.get(), .path = "archive", .begin = 0, .size = layout.bytes()}, 1 << 24);
  ASSERT_TRUE(archive) << archive.error().what();
  ASSERT_EQ(archive->entries().size(), items.size());
  for (std::size_t i = 0; i < items.size(); ++i) {
    const ZipArchive::Entry& entry = archive->entries()[i];
    ASSERT_EQ(entry.name, items[i].name);
    ASSERT_EQ(entry.size, items[i].size);
    const auto slice = archive->bytes_of(entry);
    ASSERT_TRUE(slice) << slice.error().what();
    ASSERT_EQ(slice->begin, layout.begin_of(i));
    ASSERT_EQ(slice->begin % kZipAlignment, 0);
  }
}

TEST(ZipLayout, EntriesBeginAtMultiplesOf64Bytes) {
  Items items;
  for (std::uint64_t size = 0; size < 130; ++size)
    items.push_back({"folder/" + std::string(size, 'n'), size * size});
  expect_read_back(items);
}

TEST(ZipLayout, AnArchiveWithoutEntriesIsOne) {
  expect_read_back({});
}

TEST(ZipLayout, SizesAndPlacesMayBeBeyondFourGiB) {
  constexpr std::uint64_t kFourGiB = std::uint64_t{1} << 32;
  for (const std::uint64_t size :
       {kFourGiB - 200, kFourGiB - 2, kFourGiB - 1, kFourGiB, 5 * kFourGiB})
    expect_read_back({{"first", 3}, {"large", size}, {"behind", 7}, {"again", size}, {"last", 0}});
}

TEST(ZipLayout, ThereMayBeMoreThan65535Entries) {
  for (const std::size_t count : {65'534u, 65'535u, 65'536u}) {
    Items items;
    for (std::size_t i = 0; i < count; ++i) items.push_back({std::to_string(i), i % 3});
    expect_read_back(items);
  }
}

TEST(ZipLayout, SmallArchivesNeedNoZip64) {
  const ZipLayout small(Items{{"a", 5}});
  const ZipLayout large(Items{{"a", std::uint64_t{1} << 32}});
  const std::vector<std::uint32_t> checksum = {0x12345678};
  EXPECT_THAT(small.tail(checksum), Not(HasSubstr("PK\x06\x06")));
  EXPECT_THAT(large.tail(checksum), HasSubstr("PK\x06\x06"));
  EXPECT_THAT(small.tail(checksum), HasSubstr("\x78\x56\x34\x12"));
  EXPECT_THAT(small.header(0, checksum[0]), HasSubstr("\x78\x56\x34\x12"));
}

}  // namespace
}  // namespace accel::launcher::zip_layout_test
