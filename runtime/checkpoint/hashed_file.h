// HashedFile: a file written or read once, front to back, that knows the hash of what passed
// through.
//
// Cost:     small pieces are gathered into one buffer of 1 MiB; large ones go straight from and to
// the
//           caller's memory. XXH3 runs at memory speed, far above any disk.
// Threads:  one object, one thread.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "runtime/checkpoint/file_system.h"
#include "runtime/checkpoint/unsynced_files.h"
#include "runtime/unique_fd.h"

namespace accel::checkpoint {

// Fits into a core's second-level cache: what was read or is to be written is hashed while it is there.
inline constexpr std::size_t kCachedBytes = 512 << 10;

// What a manifest says of a file. xxh3 is the 64-bit hash of its bytes, seed 0.
struct FileDigest {
  std::uint64_t bytes = 0;
  std::uint64_t xxh3 = 0;

  friend bool operator==(const FileDigest&, const FileDigest&) = default;
};

// The hash of bytes in memory.
[[nodiscard]] std::uint64_t xxh3(std::span<const std::byte> bytes);

class RunningHash {
 public:
  RunningHash();
  ~RunningHash();
  void update(std::span<const std::byte> bytes);
  [[nodiscard]] FileDigest digest() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
  std::uint64_t bytes_ = 0;
};

class OutputFile {
 public:
  // Errors of every call: as FileSystem.
  OutputFile(FileSystem& file_system, std::filesystem::path path);
  void append(std::span<const std::byte> bytes);
  void append(std::string_view text) { append(std::as_bytes(std::span(text))); }
  // Writes what is gathered, syncs and closes; nothing may be appended after it.
  FileDigest finish();
  // The same, but leaves the sync to `unsynced`.
  FileDigest finish(UnsyncedFiles& unsynced);

 private:
  void flush();
  void write(std::span<const std::byte> bytes);

  FileSystem& file_system_;
  std::filesystem::path path_;
  UniqueFd fd_;
  std::uint64_t written_ = 0;  // bytes
  std::vector<std::byte> gathered_;
  RunningHash hash_;
};

class InputFile {
 public:
  // Errors  kFileIo when it cannot be opened.
  explicit InputFile(std::filesystem::path path);
  [[nodiscard]] int fd() const noexcept { return fd_.get(); }
  [[nodiscard]] std::uint64_t size() const noexcept { return size_; }
  // Fills `out` with the next bytes. Errors kFileIo, also when the file ends before.
  void read(std::span<std::byte> out);
  // Reads on to the end. Errors kFileIo.
  FileDigest digest_of_rest();
  // Of what was read so far.
  [[nodiscard]] FileDigest digest() const { return hash_.digest(); }

 private:
  std::filesystem::path path_;
  UniqueFd fd_;
  std::uint64_t size_ = 0;
  RunningHash hash_;
};

// A small file as a string. Errors kFileIo; kFileIo also when it is larger than `limit`.
struct TextFile {
  std::string text;
  FileDigest digest;
};
[[nodiscard]] TextFile read_text_file(const std::filesystem::path& path,
                                      std::uint64_t limit = std::uint64_t{1} << 30);
FileDigest write_text_file(FileSystem& file_system,
                           const std::filesystem::path& path,
                           std::string_view text);
// The same, but leaves the sync to `unsynced`.
FileDigest write_text_file(FileSystem& file_system,
                           const std::filesystem::path& path,
                           std::string_view text,
                           UnsyncedFiles& unsynced);

}  // namespace accel::checkpoint
