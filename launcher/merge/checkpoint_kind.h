// CheckpointKind: what a folder of weights is, from the one file that each kind has.
//
// Threads:  pure, but for find_checkpoint_kind().
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include <accel/error.h>
#include <accel/result.h>

namespace accel::launcher {

enum class CheckpointKind {
  kDistcp,    // .metadata and .distcp files: torch.distributed.checkpoint
  kManifest,  // accel_checkpoint.json: save_state(), save_checkpoint()
  kShards,    // model.safetensors.index.json: save_model()
};

// Errors  kCheckpointIncomplete: it is none; in the peer's words, with the sub-folders that can be merged.
[[nodiscard]] Result<CheckpointKind> find_checkpoint_kind(const std::filesystem::path& folder);

// That error. `inner`: names of sub-folders of the kind kDistcp.
[[nodiscard]] Error no_metadata_error(const std::filesystem::path& folder,
                                      const std::vector<std::string>& inner);

}  // namespace accel::launcher
