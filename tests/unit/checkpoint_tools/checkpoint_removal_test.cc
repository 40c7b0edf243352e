#include "checkpoint_tools/merge/checkpoint_removal.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/faulty_disk.h"
#include "tests/support/scratch_folder.h"

namespace accel::launcher::checkpoint_removal_test {
namespace {

namespace fs = std::filesystem;
using test::FaultyDisk;
using test::ScratchFolder;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

TEST(CheckpointRemoval, OfDistcpFilesItTakesThoseAndTheirMetadata) {
  const ScratchFolder folder;
  for (const char* name : {".metadata", "__0_0.distcp", "__1_0.distcp", "config.json"})
    folder.write(name, "");
  folder.write("folder.distcp/notes.txt", "");

  const auto removal = plan_removal(folder.path(), CheckpointKind::kDistcp);

  ASSERT_TRUE(removal);
  EXPECT_THAT(removal->names, ElementsAre(".metadata", "__0_0.distcp", "__1_0.distcp"));
  FaultyDisk disk;
  const auto kept = remove_checkpoint(*removal, disk);
  ASSERT_TRUE(kept);
  EXPECT_THAT(*kept, ElementsAre("config.json", "folder.distcp"));
  EXPECT_TRUE(fs::exists(folder.file("folder.distcp/notes.txt")));
}

TEST(CheckpointRemoval, AFolderThatIsEmptyThenGoesToo) {
  const ScratchFolder folder;
  folder.write("inner/.metadata", "");
  const auto removal = plan_removal(folder.file("inner/"), CheckpointKind::kDistcp);
  ASSERT_TRUE(removal);
  FaultyDisk disk;
  const auto kept = remove_checkpoint(*removal, disk);
  ASSERT_TRUE(kept);
  EXPECT_THAT(*kept, IsEmpty());
  EXPECT_FALSE(fs::exists(folder.file("inner")));
}

TEST(CheckpointRemoval, NamesForAMessageAreAFew) {
  EXPECT_EQ(some_of({"a", "b"}), "a, b");
  EXPECT_EQ(some_of({"1", "2", "3", "4", "5", "6", "7"}), "1, 2, 3, 4, 5 and 2 more");
}

}  // namespace
}  // namespace accel::launcher::checkpoint_removal_test
