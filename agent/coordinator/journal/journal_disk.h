// JournalDisk: the file operations of the journal; a seam for tests that kill or fill it anywhere.
//
// Errors    kDiskFull, kFileIo.
// Threads:  one thread at a time.
#pragma once

#include <string>
#include <string_view>

#include <accel/result.h>

#include "runtime/unique_fd.h"

namespace accel::agent {

class JournalDisk {
 public:
  virtual ~JournalDisk() = default;

  // The whole file; empty when there is none.
  [[nodiscard]] virtual Result<std::string> read(const std::string& path) = 0;
  // Creates or empties the file (0600).
  [[nodiscard]] virtual Result<UniqueFd> create(const std::string& path) = 0;
  // All of it, or an error.
  [[nodiscard]] virtual Result<void> write(int fd, std::string_view bytes) = 0;
  [[nodiscard]] virtual Result<void> truncate(int fd, std::size_t bytes) = 0;
  [[nodiscard]] virtual Result<void> sync(int fd) = 0;
  // Replaces `to`; after an error it is what it was.
  [[nodiscard]] virtual Result<void> rename(const std::string& from, const std::string& to) = 0;
  // Makes the names in the folder of `path` durable.
  [[nodiscard]] virtual Result<void> sync_folder(const std::string& path) = 0;
};

[[nodiscard]] JournalDisk& real_journal_disk();

}  // namespace accel::agent
