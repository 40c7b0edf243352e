#include "checkpoint_tools/merge/checkpoint_kind.h"

#include <algorithm>
#include <system_error>

#include <accel/safetensors_index.h>

#include "checkpoint_tools/merge/distcp_metadata.h"
#include "runtime/checkpoint/layout.h"
#include "runtime/checkpoint/manifest.h"
#include "runtime/printable.h"
#include "runtime/text/folder_names.h"

namespace accel::launcher {
namespace {

namespace fs = std::filesystem;

// What HF Accelerate calls the folders of the first model and the first optimizer.
constexpr std::string_view kModelFolder = "pytorch_model_fsdp_0";
constexpr std::string_view kOptimizerFolder = "optimizer_0";
// What each rank saves besides the weights, in a checkpoint of accel.
constexpr std::string_view kRandomStates = "random_states_";

bool is_there(const fs::path& path) {
  std::error_code ignored;
  return fs::exists(path, ignored);
}

// Of names in `folder`: those of folders that can be merged.
std::vector<std::string> checkpoints_among(const fs::path& folder,
                                           const std::vector<std::string>& names) {
  std::vector<std::string> found;
  for (const std::string& name : names)
    if (!name.starts_with(checkpoint::kTemporaryPrefix) &&
        (is_there(folder / name / kDistcpMetadataName) ||
         is_there(folder / name / checkpoint::kManifestName)))
      found.push_back(name);
  return found;
}

Error unfinished_error(const fs::path& folder, std::string_view last) {
  return Error(ErrorCode::kCheckpointIncomplete,
               printable(folder.string()) +
                   " is of a save that did not end, or still goes on: " + std::string(last),
               "wait for the end of the save, or merge an older checkpoint");
}

}  // namespace

Result<CheckpointKind> find_checkpoint_kind(const fs::path& folder) {
  std::error_code unreadable;
  if (fs::status(folder / kDistcpMetadataName, unreadable).type() == fs::file_type::none)
    return Error(
        ErrorCode::kFileIo,
        "cannot read " + printable(folder.string()) + ": " + errno_text(unreadable.value()));
  if (is_there(folder / kDistcpMetadataName)) return CheckpointKind::kDistcp;
  if (is_there(folder / checkpoint::kManifestName)) {
    std::error_code ignored;
    const std::string name = fs::weakly_canonical(folder / ".", ignored).filename();
    if (name.starts_with(checkpoint::kTemporaryPrefix))
      return unfinished_error(folder, "it has no final name yet");
    return CheckpointKind::kManifest;
  }
  if (is_there(folder / safetensors::kModelIndexName)) return CheckpointKind::kShards;
  std::error_code ignored;
  const std::vector<std::string> names = names_in(folder, ignored);
  if (const auto missing = missing_last_file(names))
    return unfinished_error(folder, std::string(*missing) + ", which is written last, is missing");
  return no_metadata_error(folder, checkpoints_among(folder, names));
}

std::optional<std::string_view> missing_last_file(const std::vector<std::string>& names) {
  for (const std::string& name : names) {
    if (name.ends_with(".distcp")) return kDistcpMetadataName;
    if (name.starts_with(kRandomStates) && name.ends_with(".json"))
      return checkpoint::kManifestName;
  }
  return std::nullopt;
}

Error no_metadata_error(const fs::path& folder, const std::vector<std::string>& inner) {
  const std::string name = printable(folder.string());
  const auto has = [&](std::string_view wanted) {
    return std::find(inner.begin(), inner.end(), wanted) != inner.end();
  };
  std::string message = "Tried to load from " + name + " but couldn't find a valid metadata file.";
  if (has(kModelFolder) && has(kOptimizerFolder)) {
    message += " However, potential model and optimizer checkpoint directories exist.";
  } else if (has(kModelFolder)) {
    message += " However, a potential model checkpoint directory exists.";
  } else if (has(kOptimizerFolder)) {
    message += " However, a potential optimizer checkpoint directory exists.";
  }
  if (inner.empty())
    return Error(ErrorCode::kCheckpointIncomplete,
                 std::move(message),
                 "name the folder that has .metadata, accel_checkpoint.json or "
                 "model.safetensors.index.json in it");
  std::string remedy = "merge ";
  for (std::size_t i = 0; i < inner.size(); ++i)
    remedy += (i > 0 ? " or " : "") + printable((folder / inner[i]).string());
  return Error(ErrorCode::kCheckpointIncomplete, std::move(message), remedy + " instead");
}

}  // namespace accel::launcher
