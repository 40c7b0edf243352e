// MappedFile: a file's bytes where the page cache has them, without a copy of this process's own.
//
// A load compares them with their hashes there and copies them once, to where they are wanted: memory that a process has not had
// yet costs more than reading it.
//
// Nobody ought to write to the file meanwhile, or to cut it short; no checkpoint that is complete is written to again. When
// somebody does, verify_unchanged() says so: bytes that are gone, or that the device does not give, read as 0 and do not end the
// process (SIGBUS).
//
// Threads:  any.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>

#include <sys/stat.h>

#include "runtime/checkpoint/hashed_file.h"
#include "runtime/unique_fd.h"

namespace accel::checkpoint {

class MappedFile {
 public:
  // nullptr: it is to be read instead, because it is empty, this kernel or file system cannot map it so that read_ahead() tells of
  // errors, a handler of SIGBUS that the program has set would get what ours should, or this
  // thread blocks SIGBUS.
  // Errors  kCheckpointIncomplete: its size is another one than when it was opened.
  static std::shared_ptr<const MappedFile> map(const InputFile& file,
                                               const std::filesystem::path& path);
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  [[nodiscard]] std::span<const std::byte> bytes() const noexcept { return {begin_, size_}; }
  // Returns when so many bytes from `offset` on are in memory. Errors  kFileIo: the device does not give them;
  // kCheckpointIncomplete: the file ends before.
  void read_ahead(std::uint64_t offset, std::uint64_t bytes) const;
  // Whether bytes that were compared are those that were copied later. Errors  kCheckpointIncomplete: somebody has cut the file
  // short or written to it since it was mapped; kFileIo: the device did not give them again.
  void verify_unchanged() const;

  struct Watched;  // private

 private:
  MappedFile(std::filesystem::path path,
             UniqueFd fd,
             const struct stat& status,
             const std::byte* begin,
             Watched* watched) noexcept;
  void advise(std::uint64_t begin, std::uint64_t end) const;

  std::filesystem::path path_;
  UniqueFd fd_;
  struct stat status_;  // when it was mapped
  const std::byte* begin_;
  std::size_t size_;
  Watched* watched_;
  mutable std::atomic<std::uint64_t> advised_end_{0};  // the device was told of what lies before
};

}  // namespace accel::checkpoint
