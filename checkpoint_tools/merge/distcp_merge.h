// DistcpMerge: a folder of torch.distributed.checkpoint as one file.
//
// Threads:  one at a time for one output.
// Cost:     the metadata, and a buffer of 4 MiB (chunk_copy.h says when more); the tensors stream.
#pragma once

#include <filesystem>

#include <accel/result.h>

#include "checkpoint_tools/merge/distcp_metadata.h"
#include "checkpoint_tools/merge/merge_count.h"
#include "checkpoint_tools/merge/weights_format.h"
#include "runtime/checkpoint/file_system.h"

namespace accel::launcher {

// Writes the tensors of `metadata`, from the .distcp files of `folder`, to `output`.
// Errors  kUnsupported, kCheckpointIncomplete: a file or a tensor in it cannot be used (named); kFileIo, kDiskFull. Then
//         `output` is as it was before.
[[nodiscard]] Result<MergeCount> merge_distcp(const std::filesystem::path& folder,
                                              const DistcpMetadata& metadata,
                                              const std::filesystem::path& output,
                                              WeightsFormat format,
                                              checkpoint::FileSystem& file_system);

}  // namespace accel::launcher
