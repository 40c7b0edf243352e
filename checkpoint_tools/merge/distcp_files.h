// DistcpFiles: the chunks and values in the .distcp files of a folder of torch.distributed.checkpoint.
//
// Each is an archive of torch.save() by itself, somewhere in a file. What is read is compared with the metadata.
//
// Threads:  one at a time.
// Cost:     a file is opened once for all that is wanted of it, and one is open at a time; elements are not touched.
// Source:   torch/distributed/checkpoint/filesystem.py; tests/unit/checkpoint_tools/distcp_merge_test.cc.
#pragma once

#include <filesystem>
#include <functional>
#include <span>
#include <vector>

#include "checkpoint_tools/formats/torch_file.h"
#include "checkpoint_tools/merge/distcp_metadata.h"

namespace accel::launcher {

using WantsChunk = std::function<bool(const DistcpTensor& tensor, const DistcpChunk& chunk)>;
// `saved` may be read until it returns.
using UseChunk = std::function<void(
    const DistcpTensor& tensor, const DistcpChunk& chunk, const SavedTensor& saved)>;

// Calls `use` for the chunks that are wanted, file by file, from front to back. Errors  throws Error, naming the tensor:
// kCheckpointIncomplete: a file is not there, a chunk is damaged or is not what the metadata says; kUnsupported, kFileIo, and
// what `use` throws.
void visit_distcp_chunks(const std::filesystem::path& folder,
                         const DistcpMetadata& metadata,
                         const WantsChunk& wants,
                         const UseChunk& use);

// `file` may be used until it returns.
using UseValue = std::function<void(const DistcpValue& value, const TorchFile& file)>;
// The same of values. Errors  as above; kCheckpointIncomplete: storage_data does not say where one is.
void visit_distcp_values(const std::filesystem::path& folder,
                         std::span<const DistcpValue> values,
                         const UseValue& use);

}  // namespace accel::launcher
