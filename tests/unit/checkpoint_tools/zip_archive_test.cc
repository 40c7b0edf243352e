#include "checkpoint_tools/formats/zip_archive.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <accel/error.h>

#include "runtime/unique_fd.h"
#include "tests/unit/checkpoint_tools/saved_archive.h"

namespace accel::launcher::zip_archive_test {
namespace {

using namespace accel::test;
using ::testing::HasSubstr;

// An archive within a file that has other bytes before and behind it.
class ArchiveFile {
 public:
  explicit ArchiveFile(const std::string& archive)
      : file_(::memfd_create("archive", MFD_CLOEXEC)),
        slice_{.fd = file_.get(), .path = "file", .begin = kBefore, .size = archive.size()} {
    const std::string all = std::string(kBefore, '#') + archive + "##";
    if (::write(file_.get(), all.data(), all.size()) != static_cast<ssize_t>(all.size()))
      ADD_FAILURE() << "no memory for a file";
  }

  [[nodiscard]] Result<ZipArchive> open() const { return ZipArchive::open(slice_, 1 << 20); }
  // All of the entry, or what went wrong.
  [[nodiscard]] std::string text(const std::string& name) const {
    const auto archive = open();
    if (!archive) return archive.error().message();
    if (archive->find(name) == nullptr) return "no entry";
    const auto bytes = archive->bytes_of(*archive->find(name));
    if (!bytes) return bytes.error().message();
    const auto all = bytes->text(0, bytes->size);
    return all ? *all : all.error().message();
  }

 private:
  static constexpr std::size_t kBefore = 7;

  UniqueFd file_;
  FileSlice slice_;
};

class ZipArchives : public ::testing::TestWithParam<bool> {};

TEST_P(ZipArchives, GiveTheBytesOfEntries) {
  const ArchiveFile file(zip_of({{"a/x", "one"}, {"a/y", ""}, {"a/z", "three"}}, GetParam()));
  EXPECT_EQ(file.text("a/x"), "one");
  EXPECT_EQ(file.text("a/y"), "");
  EXPECT_EQ(file.text("a/z"), "three");
  EXPECT_EQ(file.text("a"), "no entry");
}

TEST_P(ZipArchives, AreRefusedWhenCutShort) {
  const std::string whole = zip_of({{"a/x", "one"}}, GetParam());
  for (std::size_t length = 0; length < whole.size(); ++length) {
    const ArchiveFile file(whole.substr(0, length));
    EXPECT_FALSE(file.open()) << length;
  }
}

// Whatever one byte says: an error, or bytes that are within.
TEST_P(ZipArchives, SurviveEveryDamagedByte) {
  const std::string whole = zip_of({{"a/x", "one"}, {"a/y", "two"}}, GetParam());
  for (std::size_t i = 0; i < whole.size(); ++i)
    for (const char damage : {'\x00', '\x01', '\x7f', '\xff'}) {
      std::string bytes = whole;
      bytes[i] = damage;
      const ArchiveFile file(bytes);
      const auto archive = file.open();
      if (!archive) continue;
      for (const ZipArchive::Entry& entry : archive->entries()) {
        const auto slice = archive->bytes_of(entry);
        if (slice) {
          EXPECT_LE(slice->begin + slice->size, 7 + bytes.size());
        }
      }
    }
}

INSTANTIATE_TEST_SUITE_P(Both, ZipArchives, ::testing::Bool());

TEST(ZipArchive, AnEntryTwiceIsRefused) {
  EXPECT_THAT(ArchiveFile(zip_of({{"a", "1"}, {"a", "2"}})).text("a"), HasSubstr("is there twice"));
}

TEST(ZipArchive, CompressedEntriesAreRefused) {
  std::string bytes = zip_of({{"a", "1"}});
  const std::size_t directory = bytes.find("PK\x01\x02");
  bytes[directory + 10] = 8;  // deflate
  EXPECT_THAT(ArchiveFile(bytes).text("a"), HasSubstr("a is compressed or encrypted"));
}

TEST(ZipArchive, MoreEntriesThanItsDirectoryHoldsAreRefused) {
  std::string bytes = zip_of({{"a", "1"}});
  const std::size_t record = bytes.find("PK\x06\x06");
  bytes.replace(record + 32, 8, little(1ull << 60, 8));
  EXPECT_THAT(ArchiveFile(bytes).text("a"), HasSubstr("does not hold 1152921504606846976 entries"));
}

TEST(ZipArchive, AnEntryThatReachesIntoTheDirectoryIsRefused) {
  std::string bytes = zip_of({{"a", "1"}}, /*is_zip64=*/false);
  const std::size_t directory = bytes.find("PK\x01\x02");
  bytes.replace(directory + 20, 8, little(2, 4) + little(2, 4));
  EXPECT_THAT(ArchiveFile(bytes).text("a"), HasSubstr("its entry a is not within"));
}

}  // namespace
}  // namespace accel::launcher::zip_archive_test
