// FolderExchange: two folders change names on a file system that cannot do it in one step.
//
//   .tmp-X: new            X: old
//   .tmp-X.aside: new      X: old      after the first rename
//   .tmp-X.aside: new      .tmp-X: old after the second: X is missing
//   .tmp-X: old            X: new      after the third
//
// A process that ends between two of them leaves a checkpoint without its name. Whoever comes to the
// folder next gives it back.
#pragma once

#include <filesystem>

#include "runtime/checkpoint/file_system.h"

namespace accel::checkpoint {

// Where the first rename puts `temporary`.
[[nodiscard]] inline std::filesystem::path aside_of(const std::filesystem::path& temporary) {
  return temporary.string() + ".aside";
}

// Three renames. Errors  kFileIo.
inline void exchange_by_renames(FileSystem& file_system,
                                const std::filesystem::path& temporary,
                                const std::filesystem::path& folder) {
  const std::filesystem::path aside = aside_of(temporary);
  file_system.rename(temporary, aside);
  file_system.rename(folder, temporary);
  file_system.rename(aside, folder);
}

// What may be given the name of a folder that is missing.
enum class Unnamed {
  kAside,  // the newer half of an exchange
  kAny,    // that, else a temporary folder with a manifest: for who is about to save there
};

// When `folder` is missing and a complete checkpoint waits beside it, gives that the name.
// Errors  kFileIo.
void finish_exchange(FileSystem& file_system, const std::filesystem::path& folder, Unnamed which);

// The same for a load, which goes on without it: the disk may be read-only, or another rank of the
// same disk may have been first. Does not throw.
void finish_exchange_if_possible(FileSystem& file_system, const std::filesystem::path& folder);

}  // namespace accel::checkpoint
