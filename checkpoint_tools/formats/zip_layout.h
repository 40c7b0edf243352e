// ZipLayout: a zip archive of entries that are stored as they are, planned before their bytes are there.
//
// Every entry begins at a multiple of 64 bytes, as torch.save() has it. What depends on checksums is made at the end: the header
// before each entry, and the tail with the directory. Sizes and places beyond 4 GiB, and more than 65,534 entries, go into zip64
// records; smaller archives have none.
//
//   [header, name, padding, bytes]...  directory  [zip64 end, locator]  end
//
// Threads:  a value type.
// Cost:     some 200 bytes of memory for each entry.
// Source:   zip_format.h; tests/unit/checkpoint_tools/zip_layout_test.cc.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace accel::launcher {

inline constexpr std::uint64_t kZipAlignment = 64;

class ZipLayout {
 public:
  struct Item {
    std::string name;
    std::uint64_t size = 0;  // bytes
  };

  explicit ZipLayout(std::vector<Item> items);

  [[nodiscard]] std::size_t count() const noexcept { return entries_.size(); }
  [[nodiscard]] std::uint64_t size_of(std::size_t entry) const { return entries_[entry].item.size; }
  // Bytes from the start of the archive to the entry's own, and to the header before them.
  [[nodiscard]] std::uint64_t begin_of(std::size_t entry) const { return entries_[entry].begin; }
  [[nodiscard]] std::uint64_t header_of(std::size_t entry) const { return entries_[entry].header; }
  [[nodiscard]] std::uint64_t tail_begin() const noexcept { return tail_; }
  // Of the whole archive.
  [[nodiscard]] std::uint64_t bytes() const noexcept { return bytes_; }

  // `checksum`: CRC-32 of the entry's bytes.
  [[nodiscard]] std::string header(std::size_t entry, std::uint32_t checksum) const;
  // Requires as many checksums as entries.
  [[nodiscard]] std::string tail(std::span<const std::uint32_t> checksums) const;

 private:
  struct Entry {
    Item item;
    std::uint64_t header = 0;
    std::uint64_t begin = 0;
  };
  std::vector<Entry> entries_;
  std::uint64_t tail_ = 0;
  std::uint64_t bytes_ = 0;
};

}  // namespace accel::launcher
