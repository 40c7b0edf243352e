#include "libaccel/engine/checkpoint/files/target_folder.h"

#include <string>
#include <system_error>

#include "runtime/checkpoint/manifest.h"

namespace accel::checkpoint {
namespace {

namespace fs = std::filesystem;

constexpr int kMaxLinks = 40;  // as the kernel

fs::path without_trailing_slash(const fs::path& folder) {
  return folder.has_filename() ? folder : folder.parent_path();
}

}  // namespace

fs::path absolute_name(const fs::path& folder) {
  std::error_code error;
  const fs::path name = fs::absolute(folder, error);
  return without_trailing_slash(error ? folder : name);
}

fs::path place_of(const fs::path& folder) {
  fs::path place = absolute_name(folder);
  std::error_code error;
  for (int links = 0; links < kMaxLinks; ++links) {
    // Stops before a link to nothing, which is followed here.
    const fs::path followed = fs::weakly_canonical(place, error);
    if (error) return place;
    place = without_trailing_slash(followed);
    if (!fs::is_symlink(fs::symlink_status(place, error))) return place;
    const fs::path target = fs::read_symlink(place, error);
    if (error) return place;
    place = place.parent_path() / target;
  }
  return place;
}

Present what_is_at(const fs::path& place) {
  std::error_code error;
  const fs::file_status status = fs::symlink_status(place, error);
  if (!fs::exists(status)) return Present::kNothing;
  if (!fs::is_directory(status)) return Present::kNoFolder;
  if (fs::is_empty(place, error)) return Present::kEmptyFolder;
  return fs::exists(place / kManifestName, error) ? Present::kCheckpoint : Present::kOtherFolder;
}

std::optional<Error> objection_to(const fs::path& place, Present present, Existing existing) {
  const bool is_numbered = existing == Existing::kRefuse;
  const auto exists = [&](const std::string& what, const std::string& remedy) {
    return Error(ErrorCode::kCheckpointExists, place.string() + " exists" + what, remedy);
  };
  switch (present) {
    case Present::kNothing:
    case Present::kEmptyFolder:
      return std::nullopt;
    case Present::kCheckpoint:
      if (!is_numbered) return std::nullopt;
      return exists("", "");
    case Present::kOtherFolder:
      return exists(" and is not a checkpoint",
                    is_numbered ? "set ProjectConfiguration.iteration past it, or move it away"
                                : "save under another name: only checkpoints are replaced");
    case Present::kNoFolder:
      return exists(" and is not a folder",
                    is_numbered ? "set ProjectConfiguration.iteration past it, or move it away"
                                : "save under another name: a checkpoint is a folder");
  }
  return std::nullopt;
}

}  // namespace accel::checkpoint
