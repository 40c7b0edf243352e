// PendingFile: a file that is written in place, and there at once when it is whole.
//
// The bytes go into a hidden file beside the final one, whose size is reserved first: a disk that is too small says so before
// a byte is copied. publish() makes them durable and gives the file its name, durable too, with those of the folders that
// were made for it; before that nothing of that name changes, and without it nothing stays behind, even when a signal ends
// the program (leftovers.h).
//
// Threads:  one at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <vector>

#include "checkpoint_tools/merge/leftovers.h"
#include "runtime/checkpoint/file_system.h"
#include "runtime/unique_fd.h"

namespace accel::launcher {

class PendingFile {
 public:
  // Makes the folder and the hidden file. `file_system` is borrowed.
  // Errors  throws Error, as all calls: kDiskFull, kFileIo.
  PendingFile(checkpoint::FileSystem& file_system, std::filesystem::path path, std::uint64_t bytes);
  ~PendingFile();
  PendingFile(const PendingFile&) = delete;
  PendingFile& operator=(const PendingFile&) = delete;

  void write(std::uint64_t offset, std::span<const std::byte> bytes);
  // What was written, or nothing but zeros where nothing was.
  void read(std::uint64_t offset, std::span<std::byte> out);
  // Requires: nothing is written after it.
  void publish();

 private:
  void discard() noexcept;

  checkpoint::FileSystem& file_system_;
  std::filesystem::path path_;
  std::filesystem::path hidden_;
  std::vector<std::filesystem::path> changed_folders_;
  std::optional<Leftovers> leftovers_;  // until it is published
  UniqueFd file_;
  UniqueFd reader_;
};

}  // namespace accel::launcher
