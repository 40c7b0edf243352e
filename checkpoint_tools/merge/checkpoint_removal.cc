#include "checkpoint_tools/merge/checkpoint_removal.h"

#include <algorithm>
#include <system_error>
#include <utility>

#include <accel/error.h>
#include <accel/safetensors_index.h>

#include "checkpoint_tools/merge/distcp_metadata.h"
#include "checkpoint_tools/merge/manifest_merge.h"
#include "runtime/checkpoint/manifest.h"
#include "runtime/printable.h"
#include "runtime/text/folder_names.h"

namespace accel::launcher {
namespace {

namespace fs = std::filesystem;
using Names = std::vector<std::string>;

constexpr std::size_t kMostNamed = 5;  // in a message

Result<Names> listed_names(const fs::path& folder) {
  std::error_code error;
  Names names = names_in(folder, error);
  if (!error) return names;
  return Error(ErrorCode::kFileIo,
               "cannot list " + printable(folder.string()) + ": " + errno_text(error.value()));
}

// A rank without data has an empty file, which the metadata does not name.
Result<Names> names_of_distcp(const fs::path& folder) {
  const auto present = listed_names(folder);
  if (!present) return present.error();
  Names names{std::string(kDistcpMetadataName)};
  for (const std::string& name : *present) {
    std::error_code ignored;
    if (name.ends_with(".distcp") && !fs::is_directory(folder / name, ignored))
      names.push_back(name);
  }
  return names;
}

Result<Names> names_of_shards(const fs::path& folder) {
  const auto files = safetensors::files_of_index(folder / safetensors::kModelIndexName);
  if (!files) return files.error();
  Names names{std::string(safetensors::kModelIndexName)};
  names.insert(names.end(), files->begin(), files->end());
  return names;
}

Result<Names> names_of_manifest(const fs::path& folder) {
  const auto manifest = checkpoint::read_manifest(folder);
  if (!manifest) return manifest.error();
  auto others = listed_names(folder);
  if (!others) return others.error();
  Names names{std::string(checkpoint::kManifestName)};
  for (std::string& name : model_files_of(*manifest)) names.push_back(std::move(name));
  std::erase_if(*others, [&](const std::string& name) {
    return std::find(names.begin(), names.end(), name) != names.end();
  });
  if (others->empty()) return names;
  return Error(ErrorCode::kUnsupported,
               printable(folder.string()) +
                   " holds more than models, which a merge would lose: " + some_of(*others),
               "merge without --remove_checkpoint_dir, and remove the checkpoint when nobody "
               "resumes from it");
}

}  // namespace

Result<CheckpointRemoval> plan_removal(const fs::path& folder, CheckpointKind kind) {
  auto names = kind == CheckpointKind::kDistcp   ? names_of_distcp(folder)
               : kind == CheckpointKind::kShards ? names_of_shards(folder)
                                                 : names_of_manifest(folder);
  if (!names) return std::move(names).error();
  return CheckpointRemoval{.folder = folder, .names = *std::move(names)};
}

Result<Names> remove_checkpoint(const CheckpointRemoval& removal,
                                checkpoint::FileSystem& file_system) {
  return to_result([&] {
    for (const std::string& name : removal.names) file_system.remove(removal.folder / name);
    // Unlike FileSystem::remove() this takes only an empty folder: a file that came meanwhile stays.
    std::error_code error;
    fs::remove(fs::canonical(removal.folder, error), error);
    return error ? or_throw(listed_names(removal.folder)) : Names{};
  });
}

std::string some_of(const Names& names) {
  std::string text;
  for (std::size_t i = 0; i < std::min(names.size(), kMostNamed); ++i)
    text += (i > 0 ? ", " : "") + printable(names[i]);
  if (names.size() > kMostNamed)
    text += " and " + std::to_string(names.size() - kMostNamed) + " more";
  return text;
}

}  // namespace accel::launcher
