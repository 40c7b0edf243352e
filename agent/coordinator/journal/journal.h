// Journal: the coordinator's records in one file that is only appended to.
//
//   file      "ACCELJ01"                          8 bytes: magic and version of the format
//   record    length of the body                  u32, little endian
//             XXH3-64 of the body                 u64
//             length of the key                   u32    } body
//             key, value                          bytes  }
//
// Opening reads up to the first record that is not whole. When no whole record is behind it, the rest is what a crash
// left of a write that nobody was told about: it is cut off. When one is, somebody was told of what is damaged: the file is
// refused and left as it is, and a copy of it is kept as "<path>.damaged-at-<offset>". (A power cut may leave such a hole
// among records that were not synced; nothing in the file tells them apart.) What was read is written anew, one record a
// key, under a temporary name that then replaces the file. A file of another version is refused, not touched.
//
// After a sync that failed the kernel takes what it could not write for written: no later sync of that file says anything
// about it (Rebello et al., "Can Applications Recover from fsync Failures?", 2020). So all records go into a new file.
//
// Threads:  one thread at a time; who opens it holds a lock of its own on the folder.
// Cost:     write: one write(2), and with sync one fdatasync(2). Memory: the newest record of each key.
#pragma once

#include <map>
#include <memory>
#include <string>

#include "agent/coordinator/journal/journal_disk.h"
#include "agent/coordinator/journal/state_store.h"

namespace accel::agent {

class Journal final : public StateStore {
 public:
  // Errors  kFileIo, kDiskFull; kProtocol for a file that is no journal, of another version, or damaged.
  [[nodiscard]] static Result<std::unique_ptr<Journal>> open(
      const std::string& path, JournalDisk& disk = real_journal_disk());

  [[nodiscard]] std::vector<Record> records() const override;
  [[nodiscard]] Result<void> write(const Record& record, bool sync) override;

  // Bytes at the end that open() threw away.
  [[nodiscard]] std::size_t num_torn_bytes() const noexcept { return torn_; }

 private:
  Journal(std::string path, JournalDisk& disk) : path_(std::move(path)), disk_(&disk) {}

  using Newest = std::map<std::string, std::string>;

  Result<void> load();
  Error refuse_damaged(const std::string& content, std::size_t at);
  Result<void> keep_copy(const std::string& copy, const std::string& content);
  Result<void> append(const Record& record, bool sync);
  Result<void> rewrite(const Newest& newest);
  static void remember(Newest& newest, const Record& record);

  std::string path_;
  JournalDisk* disk_;
  UniqueFd fd_;
  Newest newest_;
  std::size_t size_ = 0;        // of what is known to be whole
  std::size_t live_bytes_ = 0;  // of the newest records
  bool is_dirty_ = false;       // a failed write may have left something behind size_
  bool must_rewrite_ = false;   // what the file keeps is not known: a sync failed
  std::size_t torn_ = 0;
};

}  // namespace accel::agent
