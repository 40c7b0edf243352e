// Journal: the coordinator's records in one file that is only appended to.
//
//   file      "ACCELJ01"                          8 bytes: magic and version of the format
//   record    length of the body                  u32, little endian
//             XXH3-64 of the body                 u64
//             length of the key                   u32    } body
//             key, value                          bytes  }
//
// Opening reads up to the first record that is cut short or damaged, cuts the file there (it is what a
// crash left of a write that nobody was told about), and writes what is left anew, one record a key,
// under a temporary name that then replaces the file. A file of another version is refused, not touched.
//
// Threads:  one thread at a time; who opens it holds a lock of its own on the folder.
// Cost:     write: one write(2), and with sync one fdatasync(2). Memory: the newest record of each key.
#pragma once

#include <map>
#include <memory>
#include <string>

#include "agent/coordinator/journal_disk.h"
#include "agent/coordinator/state_store.h"

namespace accel::agent {

class Journal final : public StateStore {
 public:
  // Errors  kFileIo, kDiskFull; kProtocol for a file that is no journal, or of another version.
  [[nodiscard]] static Result<std::unique_ptr<Journal>> open(
      const std::string& path, JournalDisk& disk = real_journal_disk());

  [[nodiscard]] std::vector<Record> records() const override;
  [[nodiscard]] Result<void> write(const Record& record, bool sync) override;

  // Bytes at the end that open() threw away.
  [[nodiscard]] std::size_t num_torn_bytes() const noexcept { return torn_; }

 private:
  Journal(std::string path, JournalDisk& disk) : path_(std::move(path)), disk_(&disk) {}

  Result<void> load();
  Result<void> rewrite();
  void remember(const Record& record);

  std::string path_;
  JournalDisk* disk_;
  UniqueFd fd_;
  std::map<std::string, std::string> newest_;
  std::size_t size_ = 0;        // of what is known to be whole
  std::size_t live_bytes_ = 0;  // of the newest records
  bool is_dirty_ = false;       // a failed write may have left something behind size_
  std::size_t torn_ = 0;
};

}  // namespace accel::agent
