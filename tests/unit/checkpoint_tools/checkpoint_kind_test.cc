#include "checkpoint_tools/merge/checkpoint_kind.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "checkpoint_tools/merge/merge_folder.h"
#include "tests/support/scratch_folder.h"

namespace accel::launcher::checkpoint_kind_test {
namespace {

using test::ScratchFolder;
using ::testing::HasSubstr;
using ::testing::Not;

TEST(CheckpointKind, IsKnownByItsOneFile) {
  for (const auto& [file, kind] :
       {std::pair{".metadata", CheckpointKind::kDistcp},
        std::pair{"accel_checkpoint.json", CheckpointKind::kManifest},
        std::pair{"model.safetensors.index.json", CheckpointKind::kShards}}) {
    const ScratchFolder folder;
    folder.write(file, "");
    const auto found = find_checkpoint_kind(folder.path());
    ASSERT_TRUE(found) << file;
    EXPECT_EQ(*found, kind);
  }
}

TEST(CheckpointKind, WhyAFolderCannotBeReadIsTold) {
  const ScratchFolder folder;
  std::filesystem::create_symlink("circle", folder.file("circle"));

  const auto found = find_checkpoint_kind(folder.file("circle"));

  ASSERT_FALSE(found);
  EXPECT_EQ(found.error().code(), ErrorCode::kFileIo);
  EXPECT_THAT(found.error().message(), HasSubstr("Too many levels of symbolic links"));
}

TEST(CheckpointKind, TheFolderAboveIsToldWhichIsMeant) {
  const ScratchFolder folder;
  folder.write("pytorch_model_fsdp_0/.metadata", "");
  folder.write("optimizer_0/.metadata", "");
  folder.write("random_states/x", "");
  const auto found = find_checkpoint_kind(folder.path());
  ASSERT_FALSE(found);
  EXPECT_THAT(found.error().message(), HasSubstr("However, potential model and optimizer"));
  EXPECT_THAT(found.error().remedy(), HasSubstr(folder.file("pytorch_model_fsdp_0")));
  EXPECT_THAT(found.error().remedy(), Not(HasSubstr("random_states")));
}

TEST(CheckpointKind, TheFolderAboveCheckpointsOfAccelNamesThem) {
  const ScratchFolder folder;
  folder.write("checkpoint_3/accel_checkpoint.json", "");
  folder.write(".tmp-checkpoint_4/accel_checkpoint.json", "");
  const auto found = find_checkpoint_kind(folder.path());
  ASSERT_FALSE(found);
  EXPECT_THAT(found.error().remedy(), HasSubstr(folder.file("checkpoint_3")));
  EXPECT_THAT(found.error().remedy(), Not(HasSubstr("checkpoint_4")));
}

TEST(CheckpointKind, ASaveThatDidNotEndIsNoCheckpoint) {
  EXPECT_EQ(missing_last_file({"__0_0.distcp"}), ".metadata");
  EXPECT_EQ(missing_last_file({"model.safetensors", "random_states_0.json"}),
            "accel_checkpoint.json");
  EXPECT_EQ(missing_last_file({"config.json", "model.safetensors"}), std::nullopt);
  EXPECT_EQ(missing_last_file({}), std::nullopt);

  const ScratchFolder folder;
  folder.write(".tmp-checkpoint_4/accel_checkpoint.json", "");
  folder.write("ranks/__1_0.distcp", "");
  for (const std::string name : {".tmp-checkpoint_4", ".tmp-checkpoint_4/", "ranks"}) {
    const auto found = find_checkpoint_kind(folder.file(name));
    ASSERT_FALSE(found) << name;
    EXPECT_THAT(found.error().message(), HasSubstr("did not end")) << name;
  }
}

TEST(MergeWeights, TheResultIsNotRemovedWithTheCheckpoint) {
  const ScratchFolder folder;
  folder.write("checkpoint/.metadata", "");
  std::filesystem::create_directory_symlink(folder.path() / "checkpoint", folder.path() / "link");
  const std::filesystem::path checkpoint = folder.path() / "checkpoint";
  EXPECT_TRUE(fault_of_removal(checkpoint, checkpoint));
  EXPECT_TRUE(fault_of_removal(folder.file("checkpoint/"), checkpoint / "out"));
  EXPECT_TRUE(fault_of_removal(checkpoint, folder.path() / "link" / "out"));
  EXPECT_TRUE(fault_of_removal(checkpoint, folder.path() / "out" / ".." / "checkpoint" / "new"));
  EXPECT_TRUE(fault_of_removal(folder.path() / "link", folder.path() / "out"));
  EXPECT_FALSE(fault_of_removal(checkpoint, folder.path() / "out"));
  EXPECT_FALSE(fault_of_removal(checkpoint, folder.path() / "checkpoint_merged"));
  EXPECT_FALSE(fault_of_removal(checkpoint, folder.path()));
}

}  // namespace
}  // namespace accel::launcher::checkpoint_kind_test
