// Ranges of files, written and read.
//
// Writing gathers what is small and adjacent into one range, and passes on what fills a range by itself without a copy. The
// device begins with each range at once.
// Reading goes straight to where the bytes are wanted when one destination takes the whole range; then it is hashed while
// it is still in the cache. Only ranges that are shared between destinations pass through a buffer.

#include "runtime/checkpoint/file_ranges.h"

#include <algorithm>
#include <cstring>

#include <accel/error.h>

#include "runtime/checkpoint/hashed_file.h"
#include "runtime/checkpoint/manifest.h"
#include "runtime/read_fully.h"

namespace accel::checkpoint {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kBeginFrom = 64 << 10;

std::string bytes_text(std::uint64_t begin, std::uint64_t end) {
  return "bytes " + std::to_string(begin) + " to " + std::to_string(end);
}

void read_at(int fd, std::span<std::byte> out, std::uint64_t offset, const fs::path& path) {
  const FullRead read = read_fully(fd, out, offset);
  if (read.error != 0)
    throw Error(ErrorCode::kFileIo, "cannot read " + path.string() + ": " + errno_text(read.error));
  if (read.bytes < out.size()) {
    throw Error(ErrorCode::kCheckpointIncomplete,
                path.string() + " ends before byte " + std::to_string(offset + read.bytes) +
                    ": it is cut short");
  }
}

[[noreturn]] void fail_range(const fs::path& path,
                             const FileRange& range,
                             std::uint64_t found,
                             const std::vector<FileRange>& ranges,
                             const WhatIsAt& what_is_at) {
  std::string message = path.string() + " is damaged: " + bytes_text(range.begin, range.end()) +
                        " (" + what_is_at(range.begin, range.end()) + "), the part of rank " +
                        std::to_string(range.rank) + ", have the XXH3 hash " + hash_text(found) +
                        ", the manifest says " + hash_text(range.xxh3);
  for (const FileRange& other : ranges) {
    if (other.xxh3 != found || other.bytes != range.bytes) continue;
    message += "; they are those of " + bytes_text(other.begin, other.end());
    break;
  }
  throw Error(ErrorCode::kCheckpointIncomplete, std::move(message));
}

// What is wanted, by place.
void sort_wanted(std::vector<WantedBytes>& wanted) {
  std::erase_if(wanted, [](const WantedBytes& bytes) { return bytes.to.empty(); });
  std::sort(wanted.begin(), wanted.end(), [](const WantedBytes& a, const WantedBytes& b) {
    return a.begin < b.begin;
  });
}

class VerifiedReader {
 public:
  VerifiedReader(int fd,
                 const fs::path& path,
                 const std::vector<FileRange>& ranges,
                 const WhatIsAt& what_is_at)
      : fd_(fd), path_(path), ranges_(ranges), what_is_at_(what_is_at) {}

  // `wanted` is sorted.
  void read(std::span<const WantedBytes> wanted) {
    auto range = ranges_.begin();
    std::size_t first = 0;  // of those that end behind the range's begin
    for (; range != ranges_.end() && first < wanted.size(); ++range) {
      while (first < wanted.size() && wanted[first].end() <= range->begin) ++first;
      if (first == wanted.size() || wanted[first].begin >= range->end()) continue;
      const WantedBytes& next = wanted[first];
      if (next.begin <= range->begin && next.end() >= range->end()) {
        read_one(*range, next.to.subspan(range->begin - next.begin, range->bytes));
      } else {
        scratch_.resize(range->bytes);
        read_one(*range, scratch_);
        for (std::size_t i = first; i < wanted.size() && wanted[i].begin < range->end(); ++i)
          copy(*range, wanted[i]);
      }
    }
  }

 private:
  void read_one(const FileRange& range, std::span<std::byte> out) {
    RunningHash hash;
    for (std::size_t done = 0; done < out.size();) {
      const std::span piece = out.subspan(done, std::min(kCachedBytes, out.size() - done));
      read_at(fd_, piece, range.begin + done, path_);
      hash.update(piece);
      done += piece.size();
    }
    if (const std::uint64_t found = hash.digest().xxh3; found != range.xxh3)
      fail_range(path_, range, found, ranges_, what_is_at_);
  }

  void copy(const FileRange& range, const WantedBytes& wanted) const {
    const std::uint64_t from = std::max(range.begin, wanted.begin);
    const std::uint64_t to = std::min(range.end(), wanted.end());
    if (from >= to) return;
    std::memcpy(wanted.to.data() + (from - wanted.begin),
                scratch_.data() + (from - range.begin),
                to - from);
  }

  int fd_;
  const fs::path& path_;
  const std::vector<FileRange>& ranges_;
  const WhatIsAt& what_is_at_;
  std::vector<std::byte> scratch_;
};

}  // namespace

Result<void> sort_and_check(std::vector<FileRange>& ranges, std::uint64_t file_bytes) {
  std::sort(ranges.begin(), ranges.end(), [](const FileRange& a, const FileRange& b) {
    return a.begin < b.begin;
  });
  const auto fault = [](const std::string& what) {
    return Error(ErrorCode::kCheckpointIncomplete, what);
  };
  std::uint64_t covered = 0;
  for (const FileRange& range : ranges) {
    if (range.bytes == 0 || range.bytes > kRangeBytes || range.begin > file_bytes ||
        range.bytes > file_bytes - range.begin) {
      return fault(std::to_string(range.bytes) + " bytes from byte " + std::to_string(range.begin) +
                   " on are no range of a file of " + std::to_string(file_bytes));
    }
    if (range.begin > covered)
      return fault("nobody has written " + bytes_text(covered, range.begin));
    if (range.begin < covered)
      return fault("two ranks have written " + bytes_text(range.begin, covered));
    covered = range.end();
  }
  if (covered != file_bytes) return fault("nobody has written " + bytes_text(covered, file_bytes));
  return {};
}

RangeWriter::RangeWriter(FileSystem& file_system, int fd, const fs::path& path, int rank)
    : file_system_(file_system), fd_(fd), path_(path), rank_(rank) {}

void RangeWriter::append(std::uint64_t offset, std::span<const std::byte> bytes) {
  if (offset != begin_ + gathered_.size()) {
    flush();
    begin_ = offset;
  }
  while (!bytes.empty()) {
    const std::uint64_t at = begin_ + gathered_.size();
    const std::uint64_t room = kRangeBytes - at % kRangeBytes;
    const std::span piece = bytes.first(std::min<std::uint64_t>(room, bytes.size()));
    if (gathered_.empty() && piece.size() == room) {
      emit(at, piece);
      begin_ = at + room;
    } else {
      gathered_.insert(gathered_.end(), piece.begin(), piece.end());
      if (piece.size() == room) flush();
    }
    bytes = bytes.subspan(piece.size());
  }
}

void RangeWriter::flush() {
  if (!gathered_.empty()) emit(begin_, gathered_);
  begin_ += gathered_.size();
  gathered_.clear();
}

void RangeWriter::emit(std::uint64_t offset, std::span<const std::byte> bytes) {
  RunningHash hash;
  for (std::size_t done = 0; done < bytes.size();) {
    const std::span piece = bytes.subspan(done, std::min(kCachedBytes, bytes.size() - done));
    hash.update(piece);
    file_system_.write_at(fd_, piece, offset + done, path_);
    done += piece.size();
  }
  // What is small shares pages with its neighbours, who are about to write them too.
  if (bytes.size() >= kBeginFrom) file_system_.start_write_out(fd_, offset, bytes.size());
  ranges_.push_back(
      {.begin = offset, .bytes = bytes.size(), .rank = rank_, .xxh3 = hash.digest().xxh3});
}

std::vector<FileRange> RangeWriter::finish() {
  flush();
  return std::move(ranges_);
}

void read_verified(int fd,
                   const fs::path& path,
                   const std::vector<FileRange>& ranges,
                   std::vector<WantedBytes> wanted,
                   const WhatIsAt& what_is_at) {
  sort_wanted(wanted);
  VerifiedReader(fd, path, ranges, what_is_at).read(wanted);
}

std::vector<FileRange> ranges_with(const std::vector<FileRange>& ranges,
                                   std::vector<WantedBytes> wanted) {
  sort_wanted(wanted);
  std::vector<FileRange> found;
  std::size_t first = 0;  // of those that end behind the range's begin
  for (const FileRange& range : ranges) {
    while (first < wanted.size() && wanted[first].end() <= range.begin) ++first;
    if (first == wanted.size()) break;
    if (wanted[first].begin < range.end()) found.push_back(range);
  }
  return found;
}

void verify_mapped(const MappedFile& file,
                   const fs::path& path,
                   const FileRange& range,
                   const std::vector<FileRange>& ranges,
                   const WhatIsAt& what_is_at) {
  file.read_ahead(range.begin, range.bytes);
  const std::uint64_t found = xxh3(file.bytes().subspan(range.begin, range.bytes));
  if (found == range.xxh3) return;
  file.verify_unchanged();  // zeros in the place of what is gone are no damage
  fail_range(path, range, found, ranges, what_is_at);
}

}  // namespace accel::checkpoint
