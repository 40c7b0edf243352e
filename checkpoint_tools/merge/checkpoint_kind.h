// CheckpointKind: what a folder of weights is, from the one file that each kind has.
//
// Threads:  pure, but for find_checkpoint_kind().
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <accel/error.h>
#include <accel/result.h>

namespace accel::launcher {

enum class CheckpointKind {
  kDistcp,    // .metadata and .distcp files: torch.distributed.checkpoint
  kManifest,  // accel_checkpoint.json: save_state(), save_checkpoint()
  kShards,    // model.safetensors.index.json: save_model()
};

// Errors  kFileIo: it cannot be read. kCheckpointIncomplete: it is none; in the peer's words, with the sub-folders that can
// be merged. Or its save did not end.
[[nodiscard]] Result<CheckpointKind> find_checkpoint_kind(const std::filesystem::path& folder);

// Of a folder with files of these names and none of a kind: the file that a save would have written last. nullopt: it is no save.
[[nodiscard]] std::optional<std::string_view> missing_last_file(
    const std::vector<std::string>& names);

// The peer's words. `inner`: names of sub-folders that can be merged.
[[nodiscard]] Error no_metadata_error(const std::filesystem::path& folder,
                                      const std::vector<std::string>& inner);

}  // namespace accel::launcher
