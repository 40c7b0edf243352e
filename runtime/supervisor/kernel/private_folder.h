// PrivateFolder: a folder of the job that only its user can enter, removed with the job.
//
// It holds what workers write for the report (TORCHELASTIC_ERROR_FILE) when there is no log folder.
// Its place may be open to everybody (/tmp), so nothing there is taken for granted: the folder is made,
// never reused, and what is read is a regular file of our own, never a link and never a pipe that would
// wait for a writer.
//
//   <path>/.owner            empty; locked (flock) by the process that made the folder, as long as it lives
//   <path>/.owner-new        the same before it is locked
//   <path>/error_G_L.json    of the worker with local rank L in generation G
//
// A process that is killed leaves its folder behind. The lock goes with it, also for processes in other
// containers that share the place, so the next job that ends there removes what nobody holds.
//
// Threads:  plain values. Makes, reads and removes files, on a local file system: only before the first
//           worker and after the last one.
#pragma once

#include <string>
#include <utility>

#include <accel/result.h>

#include "runtime/unique_fd.h"

namespace accel::supervisor {

class PrivateFolder {
 public:
  // Errors  kFileIo: `path` exists, or its parent cannot be written.
  [[nodiscard]] static Result<PrivateFolder> create(const std::string& path);
  ~PrivateFolder();
  PrivateFolder(PrivateFolder&& other) noexcept;
  PrivateFolder& operator=(PrivateFolder&&) = delete;

  [[nodiscard]] const std::string& path() const noexcept { return path_; }

 private:
  PrivateFolder(std::string path, UniqueFd owner)
      : path_(std::move(path)), owner_(std::move(owner)) {}

  std::string path_;
  UniqueFd
      owner_;  // holds the lock; none where files cannot be locked: then nobody else removes it
};

// Removes such a folder after the process that made it has died. Does nothing when it is not there, is a
// link, or belongs to another user.
void remove_private_folder(const std::string& path);

// Removes the folders of our own user below `parent`, named accel-*, whose processes have died. What does
// not look like one, or holds other files, stays untouched. One whose process died before it locked the
// folder goes after a minute. Cost: reads the names in `parent`.
void remove_abandoned_folders(const std::string& parent);

// The first `limit` bytes of a regular file of our own user; empty when it is anything else.
[[nodiscard]] std::string read_own_file(const std::string& path, std::size_t limit);

}  // namespace accel::supervisor
