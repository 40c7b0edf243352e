// UnsyncedFiles: files that were written and are to be made durable together.
//
// A sync waits for the device. Files that are synced one after the other as they are written make it wait for the processor and
// the processor for it; written first and synced at the end, the device works meanwhile (FileSystem::start_write_out).
//
// Threads:  one at a time.
#pragma once

#include <filesystem>
#include <utility>
#include <vector>

#include "runtime/checkpoint/file_system.h"
#include "runtime/unique_fd.h"

namespace accel::checkpoint {

class UnsyncedFiles {
 public:
  void add(UniqueFd fd, std::filesystem::path path) {
    files_.emplace_back(std::move(fd), std::move(path));
  }
  // Returns when all are on the device. Errors  as FileSystem, of the first that fails.
  void sync(FileSystem& file_system) {
    for (const auto& [fd, path] : std::exchange(files_, {})) file_system.sync_file(fd.get(), path);
  }

 private:
  std::vector<std::pair<UniqueFd, std::filesystem::path>> files_;
};

}  // namespace accel::checkpoint
