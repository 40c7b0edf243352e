// ZipArchive: where the entries of a zip archive lie, when they are stored as they are.
//
// torch.save() writes such archives: entries are not compressed, each begins at a multiple of 64 bytes, and a zip64 record
// stands at the end. Only the directory at the end is believed; what stands before an entry is read for its length alone.
// The checksums of entries are not compared: PyTorch does not either, and may write others (set_crc32_options).
//
//   [header, name, padding, bytes]...  directory  [zip64 end, locator]  end
//
// Threads:  pure, but for the reads.
// Cost:     two or three reads for the directory, one for each entry that is asked for.
// Source:   PKWARE's APPNOTE.TXT, 4.3; tests/unit/checkpoint_tools/zip_archive_test.cc.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include <accel/result.h>

#include "checkpoint_tools/formats/file_slice.h"

namespace accel::launcher {

class ZipArchive {
 public:
  struct Entry {
    std::string name;
    std::uint64_t header =
        0;                   // bytes from the start of the archive to what stands before the entry
    std::uint64_t size = 0;  // bytes
  };

  // `most_directory_bytes`: of a directory that is read; an entry takes some 70 there, and twice as much in memory.
  // Errors  kCheckpointIncomplete: it is no archive, is damaged or has a larger directory; kUnsupported: it is in several parts; kFileIo.
  [[nodiscard]] static Result<ZipArchive> open(const FileSlice& slice,
                                               std::uint64_t most_directory_bytes);

  [[nodiscard]] const std::vector<Entry>& entries() const noexcept { return entries_; }
  // nullptr: there is none.
  [[nodiscard]] const Entry* find(std::string_view name) const noexcept;
  // The entry's bytes. Errors  kCheckpointIncomplete: they are not within the archive; kFileIo.
  [[nodiscard]] Result<FileSlice> bytes_of(const Entry& entry) const;

 private:
  FileSlice slice_;
  std::uint64_t directory_ = 0;  // its offset, where the entries end
  std::vector<Entry> entries_;
};

}  // namespace accel::launcher
