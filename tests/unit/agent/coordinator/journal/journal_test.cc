// The journal on a disk that is killed at every step, loses what was not synced, tears what was being
// written, and fills up.

#include "agent/coordinator/journal/journal.h"

#include <algorithm>
#include <map>

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/scratch_folder.h"
#include "tests/support/state_store_suite.h"

namespace accel::agent::journal_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

struct Killed {};

// Files in memory. A kill throws in the middle of a step: a write may have put half of its bytes.
class MemoryDisk final : public JournalDisk {
 public:
  struct File {
    std::string data;
    std::string synced;
    std::string lost;  // '1' for a byte that a failed sync has dropped: no later one writes it
  };

  void kill_after(int steps) { steps_left_ = steps; }
  void set_free(std::size_t bytes) { free_ = bytes; }
  void fail_syncs(int number) { failing_syncs_ = number; }
  void fail_folder_syncs(int number) { failing_folder_syncs_ = number; }
  [[nodiscard]] int steps() const { return steps_; }
  std::map<std::string, File>& files() { return files_; }

  // What a power cut leaves: of unsynced bytes the first `share` of 4 quarters.
  void cut_power(std::size_t share) {
    for (auto& [path, file] : files_) {
      const bool grew = file.data.size() > file.synced.size() &&
                        file.data.compare(0, file.synced.size(), file.synced) == 0;
      if (!grew) {
        file.data = file.synced;
        continue;
      }
      const std::size_t more = file.data.size() - file.synced.size();
      file.data.resize(file.synced.size() + more * share / 4);
      file.synced = file.data;
    }
    steps_left_ = -1;
  }

  Result<std::string> read(const std::string& path) override { return files_[path].data; }
  Result<UniqueFd> create(const std::string& path) override {
    step();
    files_[path] = {};
    UniqueFd fd(::open("/dev/null", O_WRONLY | O_CLOEXEC));
    paths_[fd.get()] = path;
    return fd;
  }
  Result<void> write(int fd, std::string_view bytes) override {
    File& file = files_[paths_.at(fd)];
    if (steps_left_ == 0) {
      file.data += bytes.substr(0, bytes.size() / 2);
      throw Killed{};
    }
    step();
    const std::size_t fits = std::min(bytes.size(), free_);
    file.data += bytes.substr(0, fits);
    file.lost.resize(file.data.size(), '0');
    free_ -= fits;
    if (fits < bytes.size()) return Error(ErrorCode::kDiskFull, "no space left");
    return {};
  }
  Result<void> truncate(int fd, std::size_t bytes) override {
    step();
    files_[paths_.at(fd)].data.resize(bytes);
    files_[paths_.at(fd)].lost.resize(bytes, '0');
    return {};
  }
  Result<void> sync(int fd) override {
    step();
    File& file = files_[paths_.at(fd)];
    file.lost.resize(file.data.size(), '0');
    if (failing_syncs_ > 0) {
      --failing_syncs_;
      for (std::size_t i = file.synced.size(); i < file.data.size(); ++i) file.lost[i] = '1';
      return Error(ErrorCode::kFileIo, "cannot sync: Input/output error");
    }
    file.synced = file.data;
    for (std::size_t i = 0; i < file.synced.size(); ++i) {
      if (file.lost[i] == '1') file.synced[i] = '\0';
    }
    return {};
  }
  Result<void> rename(const std::string& from, const std::string& to) override {
    step();
    files_[to] = files_[from];
    files_.erase(from);
    for (auto& [fd, path] : paths_) {
      if (path == from) path = to;
    }
    return {};
  }
  Result<void> sync_folder(const std::string&) override {
    step();
    if (failing_folder_syncs_ == 0) return {};
    --failing_folder_syncs_;
    return Error(ErrorCode::kFileIo, "cannot sync the folder: Input/output error");
  }

 private:
  void step() {
    ++steps_;
    if (steps_left_ == 0) throw Killed{};
    if (steps_left_ > 0) --steps_left_;
  }

  std::map<std::string, File> files_;
  std::map<int, std::string> paths_;
  int steps_ = 0;
  int steps_left_ = -1;
  int failing_syncs_ = 0;
  int failing_folder_syncs_ = 0;
  std::size_t free_ = std::size_t{1} << 40;
};

constexpr const char* kPath = "/state/journal";

std::unique_ptr<Journal> opened(MemoryDisk& disk) {
  auto journal = Journal::open(kPath, disk);
  EXPECT_TRUE(journal) << (journal ? "" : journal.error().message());
  return journal ? *std::move(journal) : nullptr;
}

TEST(Journal, ANewOneIsEmpty) {
  MemoryDisk disk;

  EXPECT_THAT(opened(disk)->records(), IsEmpty());
}

TEST(Journal, KeepsTheNewestOfEachKeyAndForgetsTheEmptyOnes) {
  MemoryDisk disk;
  auto journal = opened(disk);

  ASSERT_TRUE(journal->write({"a", "1"}, false));
  ASSERT_TRUE(journal->write({"b", "2"}, true));
  ASSERT_TRUE(journal->write({"a", "3"}, false));
  ASSERT_TRUE(journal->write({"b", ""}, false));

  EXPECT_THAT(opened(disk)->records(), ElementsAre(Record{"a", "3"}));
}

TEST(Journal, OnTheRealDisk) {
  const accel::test::ScratchFolder folder;
  const std::string path = (folder.path() / "journal").string();
  {
    auto journal = Journal::open(path);
    ASSERT_TRUE(journal) << journal.error().message();
    ASSERT_TRUE((*journal)->write({"key", std::string("\0\xff\n", 3)}, true));
  }

  auto journal = Journal::open(path);

  ASSERT_TRUE(journal) << journal.error().message();
  EXPECT_THAT((*journal)->records(), ElementsAre(Record{"key", std::string("\0\xff\n", 3)}));
}

TEST(Journal, ATornTailIsIgnoredWhereverItIsCut) {
  MemoryDisk disk;
  auto journal = opened(disk);
  ASSERT_TRUE(journal->write({"a", "1"}, true));
  const std::size_t whole = disk.files()[kPath].data.size();
  ASSERT_TRUE(journal->write({"b", "a longer value"}, true));
  const std::string full = disk.files()[kPath].data;

  for (std::size_t bytes = whole; bytes < full.size(); ++bytes) {
    disk.files()[kPath].data = full.substr(0, bytes);
    auto again = opened(disk);
    EXPECT_THAT(again->records(), ElementsAre(Record{"a", "1"}));
    EXPECT_EQ(again->num_torn_bytes(), bytes - whole);
  }
}

TEST(Journal, AnyChangedBitOfTheLastRecordCutsIt) {
  MemoryDisk disk;
  auto journal = opened(disk);
  ASSERT_TRUE(journal->write({"a", "1"}, true));
  const std::size_t whole = disk.files()[kPath].data.size();
  ASSERT_TRUE(journal->write({"b", "2"}, true));
  const std::string full = disk.files()[kPath].data;

  for (std::size_t bit = whole * 8; bit < full.size() * 8; ++bit) {
    std::string damaged = full;
    damaged[bit / 8] = static_cast<char>(damaged[bit / 8] ^ (1 << (bit % 8)));
    disk.files()[kPath].data = damaged;
    EXPECT_THAT(opened(disk)->records(), ElementsAre(Record{"a", "1"})) << "bit " << bit;
  }
}

// Somebody was told of what is behind the damage: to cut it off would take back an end, or a stop.
TEST(Journal, AnyChangedBitWithAWholeRecordBehindItIsRefusedAndACopyIsKept) {
  MemoryDisk disk;
  auto journal = opened(disk);
  ASSERT_TRUE(journal->write({"a", "1"}, true));
  const std::size_t begin = disk.files()[kPath].data.size();
  ASSERT_TRUE(journal->write({"b", "2"}, true));
  const std::size_t end = disk.files()[kPath].data.size();
  ASSERT_TRUE(journal->write({"c", "3"}, true));
  const std::string full = disk.files()[kPath].data;
  const std::string copy = kPath + (".damaged-at-" + std::to_string(begin));

  for (std::size_t bit = begin * 8; bit < end * 8; ++bit) {
    std::string damaged = full;
    damaged[bit / 8] = static_cast<char>(damaged[bit / 8] ^ (1 << (bit % 8)));
    disk.files()[kPath].data = damaged;

    const auto refused = Journal::open(kPath, disk);

    ASSERT_FALSE(refused) << "bit " << bit;
    EXPECT_EQ(refused.error().code(), ErrorCode::kProtocol);
    EXPECT_THAT(refused.error().message(),
                HasSubstr(kPath + (" is damaged at byte " + std::to_string(begin) + " of " +
                                   std::to_string(full.size()))));
    EXPECT_THAT(refused.error().message(), HasSubstr(copy));
    EXPECT_THAT(refused.error().remedy(),
                HasSubstr("truncate --size=" + std::to_string(begin) + ' ' + kPath));
    EXPECT_EQ(disk.files()[kPath].data, damaged);
    EXPECT_EQ(disk.files()[copy].synced, damaged);
  }
}

TEST(Journal, OneThatIsCutWhereItIsDamagedAsTheRemedySaysGoesOn) {
  MemoryDisk disk;
  auto journal = opened(disk);
  ASSERT_TRUE(journal->write({"a", "1"}, true));
  const std::size_t begin = disk.files()[kPath].data.size();
  ASSERT_TRUE(journal->write({"b", "2"}, true));
  ASSERT_TRUE(journal->write({"c", "3"}, true));
  disk.files()[kPath].data[begin] ^= 1;
  ASSERT_FALSE(Journal::open(kPath, disk));

  disk.files()[kPath].data.resize(begin);

  EXPECT_THAT(opened(disk)->records(), ElementsAre(Record{"a", "1"}));
}

TEST(Journal, ADamagedOneIsRefusedAlsoWhenNoCopyFitsOnTheDisk) {
  MemoryDisk disk;
  auto journal = opened(disk);
  ASSERT_TRUE(journal->write({"a", "1"}, true));
  ASSERT_TRUE(journal->write({"b", "2"}, true));
  disk.files()[kPath].data[8] ^= 1;
  disk.set_free(3);

  const auto refused = Journal::open(kPath, disk);

  ASSERT_FALSE(refused);
  EXPECT_THAT(refused.error().message(), HasSubstr("no copy could be kept: no space left"));
}

TEST(Journal, AnotherVersionIsRefusedAndLeftAlone) {
  MemoryDisk disk;
  disk.files()[kPath].data = "ACCELJ02 something newer";

  const auto journal = Journal::open(kPath, disk);

  ASSERT_FALSE(journal);
  EXPECT_EQ(journal.error().code(), ErrorCode::kProtocol);
  EXPECT_THAT(journal.error().message(), HasSubstr("another version"));
  EXPECT_FALSE(journal.error().remedy().empty());
  EXPECT_EQ(disk.files()[kPath].data, "ACCELJ02 something newer");
}

TEST(Journal, Fault59AFullDiskRefusesTheWriteAndKeepsTheRest) {
  MemoryDisk disk;
  auto journal = opened(disk);
  ASSERT_TRUE(journal->write({"a", "1"}, true));

  disk.set_free(7);
  const auto refused = journal->write({"b", "2"}, true);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code(), ErrorCode::kDiskFull);
  disk.set_free(1 << 20);
  ASSERT_TRUE(journal->write({"c", "3"}, true));

  EXPECT_THAT(opened(disk)->records(), ElementsAre(Record{"a", "1"}, Record{"c", "3"}));
}

// The kernel takes what it failed to write for written: the next sync of that file says nothing about it.
TEST(Journal, AfterAFailedSyncTheRecordsGoIntoANewFile) {
  MemoryDisk disk;
  auto journal = opened(disk);
  ASSERT_TRUE(journal->write({"a", "1"}, false));
  disk.fail_syncs(1);

  ASSERT_TRUE(journal->write({"b", "2"}, true));
  ASSERT_TRUE(journal->write({"c", "3"}, true));
  disk.cut_power(0);

  EXPECT_THAT(opened(disk)->records(),
              ElementsAre(Record{"a", "1"}, Record{"b", "2"}, Record{"c", "3"}));
}

TEST(Journal, WhileSyncsFailWritesAreRefusedAndNothingThatWasAnsweredIsLost) {
  MemoryDisk disk;
  auto journal = opened(disk);
  ASSERT_TRUE(journal->write({"a", "1"}, false));
  disk.fail_syncs(4);

  for (const char* key : {"b", "c", "d"}) {
    const auto refused = journal->write({key, "2"}, true);
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().code(), ErrorCode::kFileIo);
    EXPECT_THAT(refused.error().message(), HasSubstr("cannot sync"));
    EXPECT_THAT(journal->records(), ElementsAre(Record{"a", "1"}));
  }
  ASSERT_TRUE(journal->write({"e", "3"}, true));
  disk.cut_power(0);

  EXPECT_THAT(opened(disk)->records(), ElementsAre(Record{"a", "1"}, Record{"e", "3"}));
}

// A power cut may bring back the file of before as long as the name is not durable.
TEST(Journal, AfterAFailedSyncOfTheFolderTheNextWriteReplacesTheFileAgain) {
  MemoryDisk disk;
  auto journal = opened(disk);
  disk.fail_syncs(1);
  disk.fail_folder_syncs(1);

  ASSERT_FALSE(journal->write({"a", "1"}, true));
  const int before = disk.steps();
  ASSERT_TRUE(journal->write({"b", "2"}, true));

  EXPECT_EQ(disk.steps() - before, 5);  // create, write, sync, rename, sync of the folder
  EXPECT_THAT(opened(disk)->records(), ElementsAre(Record{"b", "2"}));
}

// Six writes, every second one synced; the last synced one that was answered before a kill.
int write_until_killed(Journal& journal) {
  int durable = 0;
  try {
    for (int i = 1; i <= 6; ++i) {
      const bool sync = i % 2 == 0;
      if (!journal.write({"k", std::to_string(i)}, sync)) break;
      if (sync) durable = i;
    }
  } catch (const Killed&) {
  }
  return durable;
}

TEST(Journal, NothingThatWasSyncedIsLostWhereverItIsKilled) {
  MemoryDisk whole;
  auto counted = opened(whole);
  const int before = whole.steps();
  write_until_killed(*counted);
  const int steps = whole.steps() - before;
  ASSERT_GE(steps, 9);

  for (int kill = 0; kill <= steps; ++kill) {
    for (std::size_t share = 0; share <= 4; ++share) {
      MemoryDisk disk;
      auto journal = opened(disk);
      disk.kill_after(kill);
      const int durable = write_until_killed(*journal);
      disk.cut_power(share);

      const auto records = opened(disk)->records();

      const int kept = records.empty() ? 0 : std::stoi(records.at(0).value);
      EXPECT_GE(kept, durable) << "killed at step " << kill << ", share " << share;
      EXPECT_LE(kept, 6);
    }
  }
}

TEST(Journal, OpeningMayBeKilledAnywhere) {
  MemoryDisk first;
  ASSERT_TRUE(opened(first)->write({"k", "1"}, true));

  for (int kill = 0; kill < 4; ++kill) {
    MemoryDisk disk = first;
    disk.kill_after(kill);
    EXPECT_THROW((void)Journal::open(kPath, disk), Killed);
    disk.cut_power(2);

    EXPECT_THAT(opened(disk)->records(), ElementsAre(Record{"k", "1"})) << "step " << kill;
  }
}

class JournalBackend final : public state_store_suite::StoreBackend {
 public:
  std::unique_ptr<StateStore> open() override {
    auto journal = Journal::open(folder_.file("journal"));
    EXPECT_TRUE(journal) << (journal ? "" : journal.error().message());
    return journal ? *std::move(journal) : nullptr;
  }

 private:
  const accel::test::ScratchFolder folder_;
};

std::unique_ptr<state_store_suite::StoreBackend> make_journal_backend() {
  return std::make_unique<JournalBackend>();
}

}  // namespace
}  // namespace accel::agent::journal_test

namespace accel::agent::state_store_suite {
INSTANTIATE_TEST_SUITE_P(Journal,
                         StateStoreContract,
                         ::testing::Values(&journal_test::make_journal_backend));
}  // namespace accel::agent::state_store_suite
