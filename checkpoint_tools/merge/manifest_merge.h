// ManifestMerge: the weights in a checkpoint of accel, taken out of it.
//
// The ranks of a sharded run write their parts into one file, so there is nothing to put together: the file, or each tensor in it,
// is copied, and what is copied is compared with the hashes of the manifest before the copy gets its name.
//
// Threads:  one at a time for one output.
// Cost:     4 MiB of memory; each byte is read, hashed and written once.
// Source:   docs/reference/checkpoint_format.md.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include <accel/result.h>

#include "checkpoint_tools/merge/merge_count.h"
#include "checkpoint_tools/merge/weights_format.h"
#include "runtime/checkpoint/file_system.h"
#include "runtime/checkpoint/manifest.h"

namespace accel::launcher {

// "model.safetensors", "model_1.safetensors": what is in `manifest`, by the number of the model.
[[nodiscard]] std::vector<std::string> model_files_of(const checkpoint::Manifest& manifest);

// Copies the models of the checkpoint in `folder` into `output`, each under its name (weights_format.h).
// Errors  kCheckpointIncomplete: it is damaged, says where and which rank wrote it; kCheckpointMismatch: it has no model;
//         kCheckpointVersion; kFileIo, kDiskFull. A file that is damaged changes nothing in `output`; those before it are there.
[[nodiscard]] Result<MergeCount> merge_manifest(const std::filesystem::path& folder,
                                                const std::filesystem::path& output,
                                                WeightsFormat format,
                                                checkpoint::FileSystem& file_system);

}  // namespace accel::launcher
