// FileSystem: the steps by which a checkpoint changes a disk.
//
// A seam: what is written, when it is durable and when it becomes visible is decided above it, and
// tests put one behind it that stops after each step, loses what was not synced, or is full.
//
// Errors    throws kDiskFull (names the device and the bytes) for ENOSPC and EDQUOT, kFileIo
// otherwise. Threads:  the real one may be called from any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>

#include "runtime/unique_fd.h"

namespace accel::checkpoint {

class FileSystem {
 public:
  virtual ~FileSystem() = default;

  // A new, empty file for writing; one that exists is an error.
  [[nodiscard]] virtual UniqueFd create_file(const std::filesystem::path& path) = 0;
  // Gives a new file its final size and reserves the space where the file system can, so that a disk
  // which is too small says so before anything is written.
  virtual void reserve(int fd, std::uint64_t bytes, const std::filesystem::path& path) = 0;
  // A file that another rank has created, for writing.
  [[nodiscard]] virtual UniqueFd open_file(const std::filesystem::path& path) = 0;
  // Appends all of `bytes`. `path` is for the error.
  virtual void write(int fd,
                     std::span<const std::byte> bytes,
                     const std::filesystem::path& path) = 0;
  // Writes all of `bytes` from byte `offset` of the file on.
  virtual void write_at(int fd,
                        std::span<const std::byte> bytes,
                        std::uint64_t offset,
                        const std::filesystem::path& path) = 0;
  // Begins to bring bytes that were written to the device, so that sync_file() finds little left. A hint: it promises
  // nothing, and what goes wrong is an error of sync_file().
  virtual void start_write_out(int fd, std::uint64_t offset, std::uint64_t bytes) noexcept = 0;
  // Returns when the file's bytes are on the device.
  virtual void sync_file(int fd, const std::filesystem::path& path) = 0;

  // A folder and its missing parents; one that exists is left alone.
  virtual void make_folder(const std::filesystem::path& path) = 0;
  // Returns when the names in the folder are on the device.
  virtual void sync_folder(const std::filesystem::path& path) = 0;

  // Gives `from` the name `to`, replacing a file (or an empty folder) that has it.
  virtual void rename(const std::filesystem::path& from, const std::filesystem::path& to) = 0;
  // Swaps the names of two files or folders in one step where the file system can, else in three.
  virtual void exchange(const std::filesystem::path& a, const std::filesystem::path& b) = 0;
  // Removes a file, or a folder and all that is in it; one that is not there is left alone.
  virtual void remove(const std::filesystem::path& path) = 0;
};

// The real one. One object for the life of the program.
[[nodiscard]] FileSystem& real_file_system();

// "/dev/sda1 at /data (ext4, 1234 bytes free)": the device that holds `path`, or its nearest
// parent.
[[nodiscard]] std::string device_text(const std::filesystem::path& path);

}  // namespace accel::checkpoint
