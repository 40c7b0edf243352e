#include "checkpoint_tools/formats/zip_layout.h"

#include <algorithm>
#include <utility>

#include "checkpoint_tools/formats/little_endian.h"
#include "checkpoint_tools/formats/zip_format.h"

namespace accel::launcher {
namespace {

using namespace zip;

constexpr std::uint16_t kVersion = 20;         // that a reader must have
constexpr std::uint16_t kVersionOfZip64 = 45;  // the same
constexpr std::uint16_t kFirstDay = 0x21;      // 1980-01-01: the same weights make the same file
constexpr std::uint64_t kExtraHead = 4;        // identifier, length

void put(std::string& bytes, std::uint64_t number, std::size_t width) {
  bytes += little_endian(number, width);
}

// A number in its old place, or the sign that it stands in the zip64 field.
void put_or_mark(std::string& bytes, std::uint64_t number) {
  put(bytes, std::min(number, kLarge32), 4);
}

// A zip64 field with those of the numbers that are too large for their places.
std::string zip64_field(std::initializer_list<std::uint64_t> numbers) {
  std::string large;
  for (const std::uint64_t number : numbers)
    if (number >= kLarge32) put(large, number, 8);
  if (large.empty()) return large;
  std::string field;
  put(field, kZip64Extra, 2);
  put(field, large.size(), 2);
  return field + large;
}

// What stands between a header's name and the entry: its sizes when they are large, and as much as brings the entry to its place.
std::string extra_of_header(std::uint64_t size, std::uint64_t end_of_name) {
  std::string extra = zip64_field({size, size});
  const std::uint64_t least = end_of_name + extra.size() + kExtraHead;
  const std::uint64_t padding = (kZipAlignment - least % kZipAlignment) % kZipAlignment;
  extra += "FB";  // as PyTorch names it
  put(extra, padding, 2);
  extra.append(padding, 'Z');
  return extra;
}

// From the version to the sizes, which the header and the directory have alike.
void put_description(std::string& bytes,
                     std::uint64_t size,
                     std::uint32_t checksum,
                     bool is_zip64) {
  put(bytes, is_zip64 ? kVersionOfZip64 : kVersion, 2);
  put(bytes, 0, 2 + 2 + 2);  // flags, stored, time
  put(bytes, kFirstDay, 2);
  put(bytes, checksum, 4);
  put_or_mark(bytes, size);
  put_or_mark(bytes, size);
}

}  // namespace

ZipLayout::ZipLayout(std::vector<Item> items) {
  for (Item& item : items) {
    const std::uint64_t end_of_name = bytes_ + kLocalHeaderBytes + item.name.size();
    const std::uint64_t begin = end_of_name + extra_of_header(item.size, end_of_name).size();
    const std::uint64_t header = std::exchange(bytes_, begin + item.size);
    entries_.push_back({.item = std::move(item), .header = header, .begin = begin});
  }
  tail_ = bytes_;
  bytes_ += tail(std::vector<std::uint32_t>(entries_.size())).size();
}

std::string ZipLayout::header(std::size_t entry, std::uint32_t checksum) const {
  const auto& [item, place, begin] = entries_[entry];
  const std::string extra =
      extra_of_header(item.size, place + kLocalHeaderBytes + item.name.size());
  std::string bytes;
  put(bytes, kLocalSignature, 4);
  put_description(bytes, item.size, checksum, item.size >= kLarge32);
  put(bytes, item.name.size(), 2);
  put(bytes, extra.size(), 2);
  return bytes + item.name + extra;
}

std::string ZipLayout::tail(std::span<const std::uint32_t> checksums) const {
  std::string bytes;
  for (std::size_t i = 0; i < entries_.size(); ++i) {
    const auto& [item, header, begin] = entries_[i];
    const std::string extra = zip64_field({item.size, item.size, header});
    put(bytes, kDirectorySignature, 4);
    put(bytes, kVersionOfZip64, 2);  // of the writer
    put_description(bytes, item.size, checksums[i], !extra.empty());
    put(bytes, item.name.size(), 2);
    put(bytes, extra.size(), 2);
    put(bytes, 0, 2 + 2 + 2);  // comment, part, attributes
    put(bytes, 0, 4);
    put_or_mark(bytes, header);
    bytes += item.name + extra;
  }
  const std::uint64_t directory_bytes = bytes.size();
  const std::uint64_t count = entries_.size();
  if (count >= kLarge16 || directory_bytes >= kLarge32 || tail_ >= kLarge32) {
    const std::uint64_t record = tail_ + directory_bytes;
    put(bytes, kEnd64Signature, 4);
    put(bytes, kEnd64Bytes - 12, 8);  // behind this number
    put(bytes, kVersionOfZip64, 2);
    put(bytes, kVersionOfZip64, 2);
    put(bytes, 0, 8);  // parts
    put(bytes, count, 8);
    put(bytes, count, 8);
    put(bytes, directory_bytes, 8);
    put(bytes, tail_, 8);
    put(bytes, kLocatorSignature, 4);
    put(bytes, 0, 4);
    put(bytes, record, 8);
    put(bytes, 1, 4);
  }
  put(bytes, kEndSignature, 4);
  put(bytes, 0, 4);
  put(bytes, std::min(count, kLarge16), 2);
  put(bytes, std::min(count, kLarge16), 2);
  put_or_mark(bytes, directory_bytes);
  put_or_mark(bytes, tail_);
  put(bytes, 0, 2);  // comment
  return bytes;
}

}  // namespace accel::launcher
