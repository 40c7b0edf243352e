// FileRanges: a file that several ranks write and read by ranges, each with a hash of its own.
//
// A rank that loads needs other parts of a file than a rank that saved, and must not read the whole file to check them.
// So what a rank writes is cut at multiples of kRangeBytes of the file, and each of these ranges is hashed: a reader reads
// the ranges that overlap what it wants, at most kRangeBytes too much at either end.
//
// Threads:  one object, one thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include <accel/result.h>

#include "runtime/checkpoint/file_system.h"
#include "runtime/checkpoint/mapped_file.h"

namespace accel::checkpoint {

inline constexpr std::uint64_t kRangeBytes = std::uint64_t{4} << 20;

struct FileRange {
  std::uint64_t begin = 0;  // bytes from the start of the file
  std::uint64_t bytes = 0;
  int rank = 0;  // that wrote it
  std::uint64_t xxh3 = 0;

  [[nodiscard]] std::uint64_t end() const noexcept { return begin + bytes; }
};

// Sorts `ranges` by place. Errors  kCheckpointIncomplete: they leave a hole in a file of `file_bytes` or overlap; says where.
[[nodiscard]] Result<void> sort_and_check(std::vector<FileRange>& ranges, std::uint64_t file_bytes);

// Writes ranges of a file, from front to back with gaps.
class RangeWriter {
 public:
  // All borrowed. Errors of every call: as FileSystem.
  RangeWriter(FileSystem& file_system, int fd, const std::filesystem::path& path, int rank);
  // `offset` is not below the end of what was appended before.
  void append(std::uint64_t offset, std::span<const std::byte> bytes);
  // Writes what is gathered and returns all ranges. Does not sync.
  [[nodiscard]] std::vector<FileRange> finish();

 private:
  void flush();
  void emit(std::uint64_t offset, std::span<const std::byte> bytes);

  FileSystem& file_system_;
  int fd_;
  const std::filesystem::path& path_;
  int rank_;
  std::uint64_t begin_ = 0;  // of what is gathered
  std::vector<std::byte> gathered_;
  std::vector<FileRange> ranges_;
};

// Says what lies in [begin, end) of a file, for errors.
using WhatIsAt = std::function<std::string(std::uint64_t begin, std::uint64_t end)>;

// Bytes of the file and where they are to go.
struct WantedBytes {
  std::uint64_t begin = 0;
  std::span<std::byte> to;

  [[nodiscard]] std::uint64_t end() const noexcept { return begin + to.size(); }
};

// Fills `wanted`. `ranges`: of the whole file, sorted.
// Errors  throws kCheckpointIncomplete naming the file, the bytes and the rank that wrote them; kFileIo.
void read_verified(int fd,
                   const std::filesystem::path& path,
                   const std::vector<FileRange>& ranges,
                   std::vector<WantedBytes> wanted,
                   const WhatIsAt& what_is_at);

// The ranges that hold bytes which are wanted (their destinations are not looked at). `ranges`: sorted.
[[nodiscard]] std::vector<FileRange> ranges_with(const std::vector<FileRange>& ranges,
                                                 std::vector<WantedBytes> wanted);
// Compares a range where the file is mapped. Errors  as read_verified().
void verify_mapped(const MappedFile& file,
                   const std::filesystem::path& path,
                   const FileRange& range,
                   const std::vector<FileRange>& ranges,
                   const WhatIsAt& what_is_at);

}  // namespace accel::checkpoint
