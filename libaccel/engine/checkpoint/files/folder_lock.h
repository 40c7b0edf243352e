// FolderLock: tells other processes that somebody is at work in a folder, for as long as that process lives.
//
// The kernel gives the lock back when its holder ends, however it ends; so what is not locked was left behind. It goes with the
// folder when that is renamed. File systems without locks on folders (NFS) let everybody take it.
//
// Threads:  one object, one thread. Two objects of one process exclude each other too.
#pragma once

#include <filesystem>
#include <optional>
#include <utility>

#include "runtime/unique_fd.h"

namespace accel::checkpoint {

class FolderLock {
 public:
  // std::nullopt: another one has it. A folder that is not there needs no lock. Throws kFileIo for one
  // that cannot be opened.
  [[nodiscard]] static std::optional<FolderLock> take(const std::filesystem::path& folder);

  // Waits for the other one. Throws kFileIo, also for a folder that is not there.
  [[nodiscard]] static FolderLock wait(const std::filesystem::path& folder);

  // Not of a folder that was not there.
  [[nodiscard]] bool is_held() const noexcept { return static_cast<bool>(folder_); }

 private:
  explicit FolderLock(UniqueFd folder) : folder_(std::move(folder)) {}
  UniqueFd folder_;
};

}  // namespace accel::checkpoint
