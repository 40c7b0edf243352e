// CheckpointRemoval: what may go when the weights of a checkpoint are merged: that which the result has, and nothing else.
//
//   .distcp files      .metadata and the files
//   shards             the index and the files that it names
//   one of accel       the manifest and the models, and only when the folder holds nothing else
//
// The folder goes with them when it is empty then.
//
// Threads:  one at a time for one folder.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include <accel/result.h>

#include "checkpoint_tools/merge/checkpoint_kind.h"
#include "runtime/checkpoint/file_system.h"

namespace accel::launcher {

struct CheckpointRemoval {
  std::filesystem::path folder;
  std::vector<std::string>
      names;  // that go; first the file without which the folder is no checkpoint
};

// Looks, and changes nothing.
// Errors  kUnsupported: a checkpoint of accel with more than models (named); kFileIo, and those of reading an index or a
//         manifest.
[[nodiscard]] Result<CheckpointRemoval> plan_removal(const std::filesystem::path& folder,
                                                     CheckpointKind kind);

// Returns the names of what stays in the folder; none: it is gone.
// Errors  kFileIo.
[[nodiscard]] Result<std::vector<std::string>> remove_checkpoint(
    const CheckpointRemoval& removal, checkpoint::FileSystem& file_system);

// "step, param_groups and 3 more": names for a message.
[[nodiscard]] std::string some_of(const std::vector<std::string>& names);

}  // namespace accel::launcher
