// PrivateFolder: a folder of the job that only its user can enter, removed with the job.
//
// It holds what workers write for the report (TORCHELASTIC_ERROR_FILE) when there is no log folder.
// Its place may be open to everybody (/tmp), so nothing there is taken for granted: the folder is made,
// never reused, and what is read is a regular file of our own, never a link and never a pipe that would
// wait for a writer.
//
// Threads:  plain values. Makes, reads and removes files, on a local file system: only before the first
//           worker and after the last one.
#pragma once

#include <string>

#include <accel/result.h>

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
  explicit PrivateFolder(std::string path) : path_(std::move(path)) {}

  std::string path_;
};

// Removes such a folder after the process that made it has died. Does nothing when it is not there, is a
// link, or belongs to another user.
void remove_private_folder(const std::string& path);

// The first `limit` bytes of a regular file of our own user; empty when it is anything else.
[[nodiscard]] std::string read_own_file(const std::string& path, std::size_t limit);

}  // namespace accel::supervisor
