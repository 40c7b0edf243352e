// ShardMerge: a model in numbered safetensors files with an index, as one file.
//
// Threads:  one at a time for one output.
// Cost:     the headers, and a buffer of 4 MiB.
#pragma once

#include <filesystem>

#include <accel/result.h>

#include "checkpoint_tools/merge/merge_count.h"
#include "checkpoint_tools/merge/weights_format.h"
#include "runtime/checkpoint/file_system.h"

namespace accel::launcher {

// Writes all tensors of the files that model.safetensors.index.json in `folder` names to `output`, with their metadata.
// Errors  kConfigUnreadable, kConfigSyntax, kConfigInvalidValue: the index; kSafetensorsHeader: a file of it;
//         kSafetensorsMismatch: two files have one tensor, or a file has others than the index says; kFileIo, kDiskFull. Then `output` is as it was before.
[[nodiscard]] Result<MergeCount> merge_shards(const std::filesystem::path& folder,
                                              const std::filesystem::path& output,
                                              WeightsFormat format,
                                              checkpoint::FileSystem& file_system);

}  // namespace accel::launcher
