// TargetFolder: where a checkpoint is to appear, and what is in its way there.
//
// Threads:  any.
#pragma once

#include <filesystem>
#include <optional>

#include <accel/error.h>

namespace accel::checkpoint {

// From the working directory of this moment, without a slash at its end. Empty stays empty. Throws
// nothing: where there is no working directory any more, the name stays as it is.
[[nodiscard]] std::filesystem::path absolute_name(const std::filesystem::path& folder);

// The folder that a name stands for: its absolute name without links and dots, so that a rename puts
// the checkpoint behind a link and not in its place. A link to nothing stands for its target. Throws
// nothing: what cannot be followed keeps its name (a link that leads to itself, a folder that may
// not be looked into).
[[nodiscard]] std::filesystem::path place_of(const std::filesystem::path& folder);

enum class Existing {
  kReplace,  // a checkpoint of that name gives way; anything else is kCheckpointExists
  kRefuse,   // whatever has that name is kCheckpointExists
};

enum class Present {
  kNothing,
  kEmptyFolder,
  kCheckpoint,  // complete or not
  kOtherFolder,
  kNoFolder,  // a file, a link that leads nowhere
};

[[nodiscard]] Present what_is_at(const std::filesystem::path& place);

// Why a save may not have the place; std::nullopt: it may.
[[nodiscard]] std::optional<Error> objection_to(const std::filesystem::path& place,
                                                Present present,
                                                Existing existing);

}  // namespace accel::checkpoint
