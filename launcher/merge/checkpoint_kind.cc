#include "launcher/merge/checkpoint_kind.h"

#include <algorithm>
#include <system_error>

#include "launcher/commands/model_index.h"
#include "launcher/merge/distcp_metadata.h"
#include "runtime/checkpoint/manifest.h"
#include "runtime/printable.h"

namespace accel::launcher {
namespace {

namespace fs = std::filesystem;

// What HF Accelerate calls the folders of the first model and the first optimizer.
constexpr std::string_view kModelFolder = "pytorch_model_fsdp_0";
constexpr std::string_view kOptimizerFolder = "optimizer_0";

bool is_there(const fs::path& path) {
  std::error_code ignored;
  return fs::exists(path, ignored);
}

std::vector<std::string> folders_with_metadata(const fs::path& folder) {
  std::vector<std::string> names;
  std::error_code error;
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end;
       entry.increment(error))
    if (is_there(entry->path() / kDistcpMetadataName)) names.push_back(entry->path().filename());
  std::sort(names.begin(), names.end());
  return names;
}

}  // namespace

Result<CheckpointKind> find_checkpoint_kind(const fs::path& folder) {
  if (is_there(folder / kDistcpMetadataName)) return CheckpointKind::kDistcp;
  if (is_there(folder / checkpoint::kManifestName)) return CheckpointKind::kManifest;
  if (is_there(folder / kModelIndexName)) return CheckpointKind::kShards;
  return no_metadata_error(folder, folders_with_metadata(folder));
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
