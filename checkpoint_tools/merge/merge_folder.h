// MergeFolder: the parts of a sharded checkpoint, of whichever kind, as one file of weights.
//
// Threads:  one at a time for one output.
// Cost:     as of the kind: shard_merge.h, distcp_merge.h, manifest_merge.h.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include <accel/error.h>
#include <accel/result.h>

#include "checkpoint_tools/merge/merge_count.h"
#include "checkpoint_tools/merge/weights_format.h"

namespace accel::launcher {

struct FolderMerge {
  std::filesystem::path checkpoint;  // a folder
  std::filesystem::path output;      // a folder
  WeightsFormat format = WeightsFormat::kSafetensors;
  bool removes_checkpoint = false;  // when the result is on the disk

  [[nodiscard]] std::filesystem::path result() const { return output / weights_name(format); }
};

struct MergedFolder {
  MergeCount count;
  std::vector<std::string> notices;  // what was left out, and what was kept
};

// Errors  kUsage: as fault_of_removal(), or a checkpoint that is whole already; kOutOfMemory; those of the kind of checkpoint.
[[nodiscard]] Result<MergedFolder> merge_folder(const FolderMerge& merge);

// Why the folder may not be removed after a merge to `output`: it is a link, or the result would go with it.
// nullopt: it may.
[[nodiscard]] std::optional<Error> fault_of_removal(const std::filesystem::path& checkpoint,
                                                    const std::filesystem::path& output);

}  // namespace accel::launcher
