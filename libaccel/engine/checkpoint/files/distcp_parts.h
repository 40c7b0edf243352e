// DistcpParts: tensors in a folder of torch.distributed.checkpoint, read whole or in the parts that a rank wants of them.
//
// Chunks are boxes in a tensor's index space, saved by any number of ranks; parts are ranges of elements in row-major order. What
// both have is copied, so a folder is read by any number of ranks.
//
// Threads:  one at a time.
// Cost:     a chunk that overlaps a part is read whole, once; others are not touched. Memory as chunk_copy.h says, beside the parts.
// Source:   checkpoint_tools/merge/distcp_files.h.
#pragma once

#include <filesystem>
#include <functional>
#include <optional>
#include <string>

#include "checkpoint_tools/merge/distcp_metadata.h"
#include "libaccel/engine/checkpoint/files/shared_file.h"

namespace accel::checkpoint {

// What a tensor of the folder is called here; std::nullopt: it is left out.
using DistcpNaming = std::function<std::optional<std::string>(const launcher::DistcpTensor&)>;

// Adds them to `loaded`. Errors  throws kCheckpointIncomplete, kUnsupported, kFileIo: all name the tensor.
void read_distcp_parts(LoadedParts& loaded,
                       const std::filesystem::path& folder,
                       const launcher::DistcpMetadata& metadata,
                       const DistcpNaming& name_of,
                       const PartsWanted& wanted);

// How a tensor of the folder is described to those who want parts of it.
[[nodiscard]] safetensors::TensorInfo info_of(const launcher::DistcpTensor& tensor,
                                              std::string name);

}  // namespace accel::checkpoint
