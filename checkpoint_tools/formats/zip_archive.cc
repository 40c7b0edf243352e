#include "checkpoint_tools/formats/zip_archive.h"

#include <algorithm>
#include <optional>
#include <unordered_set>

#include <accel/error.h>

#include "checkpoint_tools/formats/zip_format.h"
#include "runtime/printable.h"

namespace accel::launcher {
namespace {

using namespace zip;

Error damaged_archive(const FileSlice& slice, const std::string& what) {
  return Error(ErrorCode::kCheckpointIncomplete,
               "what " + printable(slice.path) + " holds from byte " + std::to_string(slice.begin) +
                   " on is no archive of torch.save(): " + what,
               "copy the file again: it is cut short or was changed");
}

// Little-endian numbers of a record, in turn. Requires that the record has them.
class Fields {
 public:
  explicit Fields(std::string_view bytes) : bytes_(bytes) {}
  std::uint64_t next(std::size_t width) {
    std::uint64_t number = 0;
    for (std::size_t i = 0; i < width; ++i)
      number |= std::uint64_t{static_cast<unsigned char>(bytes_[i])} << (8 * i);
    bytes_.remove_prefix(width);
    return number;
  }
  void skip(std::size_t width) { bytes_.remove_prefix(width); }
  [[nodiscard]] std::size_t left() const { return bytes_.size(); }

 private:
  std::string_view bytes_;
};

struct Directory {
  std::uint64_t entries = 0;
  std::uint64_t bytes = 0;
  std::uint64_t offset = 0;
};

// The zip64 record in front of the locator at `locator`.
Result<Directory> read_end64(const FileSlice& slice, std::uint64_t locator) {
  const auto found = slice.text(locator, kLocatorBytes);
  if (!found) return found.error();
  Fields fields(*found);
  if (fields.next(4) != kLocatorSignature) return damaged_archive(slice, "it has no zip64 locator");
  fields.skip(4);
  const std::uint64_t offset = fields.next(8);
  const auto record = slice.text(offset, kEnd64Bytes);
  if (!record) return damaged_archive(slice, "its zip64 record is not within");
  Fields end(*record);
  if (end.next(4) != kEnd64Signature) return damaged_archive(slice, "it has no zip64 record");
  end.skip(8 + 2 + 2 + 4 + 4 + 8);
  Directory directory;
  directory.entries = end.next(8);
  directory.bytes = end.next(8);
  directory.offset = end.next(8);
  return directory;
}

Result<Directory> find_directory(const FileSlice& slice) {
  if (slice.size < kEndBytes) return damaged_archive(slice, "it is too short");
  const std::uint64_t place = slice.size - kEndBytes;
  const auto end = slice.text(place, kEndBytes);
  if (!end) return end.error();
  Fields fields(*end);
  if (fields.next(4) != kEndSignature) return damaged_archive(slice, "it does not end as one");
  if (fields.next(2) != 0 || fields.next(2) != 0)
    return Error(ErrorCode::kUnsupported,
                 printable(slice.path) + " is an archive in several parts");
  fields.skip(2);
  Directory directory;
  directory.entries = fields.next(2);
  directory.bytes = fields.next(4);
  directory.offset = fields.next(4);
  if (directory.entries != kLarge16 && directory.bytes != kLarge32 && directory.offset != kLarge32)
    return directory;
  if (place < kLocatorBytes) return damaged_archive(slice, "it has no zip64 locator");
  return read_end64(slice, place - kLocatorBytes);
}

// Puts what the zip64 field says in the place of the numbers that were too large for theirs.
bool apply_zip64(std::string_view extra,
                 std::uint64_t& size,
                 std::uint64_t& stored,
                 std::uint64_t& header) {
  Fields fields(extra);
  while (fields.left() >= 4) {
    const std::uint64_t id = fields.next(2);
    const std::uint64_t length = fields.next(2);
    if (length > fields.left()) return false;
    if (id != kZip64Extra) {
      fields.skip(length);
      continue;
    }
    std::uint64_t left = length;
    for (std::uint64_t* number : {&size, &stored, &header}) {
      if (*number != kLarge32) continue;
      if (left < 8) return false;
      *number = fields.next(8);
      left -= 8;
    }
    return true;
  }
  return size != kLarge32 && stored != kLarge32 && header != kLarge32;
}

// The entry at the front of `rest`, which loses its bytes.
Result<ZipArchive::Entry> take_entry(const FileSlice& slice, std::string_view& rest) {
  if (rest.size() < kDirectoryEntryBytes)
    return damaged_archive(slice, "its directory is cut short");
  Fields fields(rest);
  if (fields.next(4) != kDirectorySignature)
    return damaged_archive(slice, "its directory is damaged");
  fields.skip(4);
  const std::uint64_t flags = fields.next(2);
  const std::uint64_t method = fields.next(2);
  fields.skip(8);
  std::uint64_t stored = fields.next(4);
  std::uint64_t size = fields.next(4);
  const std::uint64_t name_bytes = fields.next(2);
  const std::uint64_t extra_bytes = fields.next(2);
  const std::uint64_t comment_bytes = fields.next(2);
  fields.skip(8);
  std::uint64_t header = fields.next(4);
  if (fields.left() < name_bytes + extra_bytes + comment_bytes)
    return damaged_archive(slice, "its directory is cut short");
  const std::string name(rest.substr(kDirectoryEntryBytes, name_bytes));
  const std::string_view extra = rest.substr(kDirectoryEntryBytes + name_bytes, extra_bytes);
  rest.remove_prefix(kDirectoryEntryBytes + name_bytes + extra_bytes + comment_bytes);
  if (!apply_zip64(extra, size, stored, header))
    return damaged_archive(slice, "the size of its entry " + printable(name) + " is missing");
  if (method != 0 || (flags & 1) != 0 || stored != size)
    return damaged_archive(slice, "its entry " + printable(name) + " is compressed or encrypted");
  return ZipArchive::Entry{.name = name, .header = header, .size = size};
}

}  // namespace

Result<ZipArchive> ZipArchive::open(const FileSlice& slice, std::uint64_t most_directory_bytes) {
  const auto directory = find_directory(slice);
  if (!directory) return directory.error();
  if (directory->bytes > most_directory_bytes)
    return damaged_archive(slice,
                           "it has a directory of " + std::to_string(directory->bytes) +
                               " bytes, expected at most " + std::to_string(most_directory_bytes));
  if (directory->entries > directory->bytes / kDirectoryEntryBytes)
    return damaged_archive(slice,
                           "a directory of " + std::to_string(directory->bytes) +
                               " bytes does not hold " + std::to_string(directory->entries) +
                               " entries");
  const auto bytes = slice.text(directory->offset, directory->bytes);
  if (!bytes) return damaged_archive(slice, "its directory is not within");
  ZipArchive archive;
  archive.slice_ = slice;
  archive.directory_ = directory->offset;
  std::string_view rest = *bytes;
  for (std::uint64_t i = 0; i < directory->entries; ++i) {
    auto entry = take_entry(slice, rest);
    if (!entry) return entry.error();
    archive.entries_.push_back(*std::move(entry));
  }
  std::unordered_set<std::string_view> names;
  for (const Entry& entry : archive.entries_)
    if (!names.insert(entry.name).second)
      return damaged_archive(slice, "its entry " + printable(entry.name) + " is there twice");
  return archive;
}

const ZipArchive::Entry* ZipArchive::find(std::string_view name) const noexcept {
  const auto found = std::find_if(
      entries_.begin(), entries_.end(), [&](const Entry& entry) { return entry.name == name; });
  return found == entries_.end() ? nullptr : &*found;
}

Result<FileSlice> ZipArchive::bytes_of(const Entry& entry) const {
  const auto header = slice_.text(entry.header, kLocalHeaderBytes);
  if (!header)
    return damaged_archive(slice_, "its entry " + printable(entry.name) + " is not within");
  Fields fields(*header);
  if (fields.next(4) != kLocalSignature)
    return damaged_archive(slice_, "its entry " + printable(entry.name) + " does not begin as one");
  fields.skip(22);
  const std::uint64_t begin = kLocalHeaderBytes + fields.next(2) + fields.next(2);
  // entry.header is within the slice, so the sum does not overflow.
  if (entry.header + begin > directory_ || entry.size > directory_ - (entry.header + begin))
    return damaged_archive(slice_, "its entry " + printable(entry.name) + " is not within");
  return slice_.part(entry.header + begin, entry.size);
}

}  // namespace accel::launcher
