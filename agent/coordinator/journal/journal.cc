#include "agent/coordinator/journal/journal.h"

#include <cstdint>
#include <cstring>
#include <optional>

#include <xxhash.h>

namespace accel::agent {
namespace {

constexpr std::string_view kMagic = "ACCELJ01";
constexpr std::string_view kMagicName = "ACCELJ";
constexpr std::size_t kHeader = sizeof(std::uint32_t) + sizeof(std::uint64_t);
constexpr std::uint32_t kLongestBody = 64u << 20;
// Written anew once most of the file is history.
constexpr std::size_t kRewriteAbove = 16u << 20;

template <typename T>
void append_number(std::string& out, T value) {
  for (std::size_t i = 0; i < sizeof value; ++i) {
    out += static_cast<char>(static_cast<unsigned char>(value >> (8 * i)));
  }
}

template <typename T>
T number_at(std::string_view bytes) {
  T value = 0;
  for (std::size_t i = 0; i < sizeof value; ++i) {
    value |= static_cast<T>(static_cast<unsigned char>(bytes[i])) << (8 * i);
  }
  return value;
}

std::string encoded(const Record& record) {
  std::string body;
  append_number(body, static_cast<std::uint32_t>(record.key.size()));
  body += record.key;
  body += record.value;
  std::string bytes;
  append_number(bytes, static_cast<std::uint32_t>(body.size()));
  append_number(bytes, static_cast<std::uint64_t>(XXH3_64bits(body.data(), body.size())));
  return bytes += body;
}

// The record at the start of `bytes`, and how long it is; none when it is not whole.
std::optional<std::pair<Record, std::size_t>> decoded(std::string_view bytes) {
  if (bytes.size() < kHeader) return std::nullopt;
  const auto length = number_at<std::uint32_t>(bytes);
  const auto hash = number_at<std::uint64_t>(bytes.substr(sizeof(std::uint32_t)));
  if (length < sizeof(std::uint32_t) || length > kLongestBody) return std::nullopt;
  if (length > bytes.size() - kHeader) return std::nullopt;
  const std::string_view body = bytes.substr(kHeader, length);
  const auto key = number_at<std::uint32_t>(body);
  if (key > length - sizeof(std::uint32_t)) return std::nullopt;
  if (XXH3_64bits(body.data(), body.size()) != hash) return std::nullopt;
  const std::string_view text = body.substr(sizeof(std::uint32_t));
  return std::pair(Record{std::string(text.substr(0, key)), std::string(text.substr(key))},
                   kHeader + length);
}

// Whether a whole record begins anywhere behind the first byte. The text of records holds no bytes that would pass for a
// record's head, so a piece of one does not.
bool holds_record(std::string_view bytes) {
  for (std::size_t at = 1; at + kHeader < bytes.size(); ++at) {
    if (decoded(bytes.substr(at))) return true;
  }
  return false;
}

}  // namespace

Result<std::unique_ptr<Journal>> Journal::open(const std::string& path, JournalDisk& disk) {
  std::unique_ptr<Journal> journal(new Journal(path, disk));
  if (auto loaded = journal->load(); !loaded) {
    return std::move(loaded).error().while_doing("opening the journal " + path);
  }
  if (auto written = journal->rewrite(journal->newest_); !written) {
    return std::move(written).error().while_doing("writing the journal " + path);
  }
  return journal;
}

Result<void> Journal::load() {
  auto content = disk_->read(path_);
  if (!content) return content.error();
  std::string_view left = *content;
  // A file shorter than its magic is what a crash left of making it.
  if (left.size() < kMagic.size() && kMagic.substr(0, left.size()) == left) {
    torn_ = left.size();
    return {};
  }
  if (left.substr(0, kMagic.size()) != kMagic) {
    const bool is_journal = left.substr(0, kMagicName.size()) == kMagicName;
    return Error(ErrorCode::kProtocol,
                 path_ + (is_journal ? " is a journal of another version of accel"
                                     : " is not a journal of accel"),
                 "start the version that wrote it, or move the file away (its jobs are forgotten)");
  }
  left.remove_prefix(kMagic.size());
  while (auto record = decoded(left)) {
    remember(newest_, record->first);
    left.remove_prefix(record->second);
  }
  if (holds_record(left)) return refuse_damaged(*content, content->size() - left.size());
  torn_ = left.size();
  return {};
}

Error Journal::refuse_damaged(const std::string& content, std::size_t at) {
  const std::string offset = std::to_string(at);
  const std::string copy = path_ + ".damaged-at-" + offset;
  const auto kept = keep_copy(copy, content);
  return Error(
      ErrorCode::kProtocol,
      path_ + " is damaged at byte " + offset + " of " + std::to_string(content.size()) +
          ", and whole records are behind it; " +
          (kept ? "a copy is kept as " + copy : "no copy could be kept: " + kept.error().message()),
      "put back a good copy of the file, or forget what is damaged and all behind it: "
      "truncate --size=" +
          offset + ' ' + path_);
}

Result<void> Journal::keep_copy(const std::string& copy, const std::string& content) {
  auto fd = disk_->create(copy);
  if (!fd) return fd.error();
  if (auto written = disk_->write(fd->get(), content); !written) return written;
  if (auto synced = disk_->sync(fd->get()); !synced) return synced;
  return disk_->sync_folder(copy);
}

Result<void> Journal::rewrite(const Newest& newest) {
  std::string bytes(kMagic);
  for (const auto& [key, value] : newest) bytes += encoded({key, value});
  const std::string fresh = path_ + ".new";
  auto fd = disk_->create(fresh);
  if (!fd) return fd.error();
  if (auto written = disk_->write(fd->get(), bytes); !written) return written;
  if (auto synced = disk_->sync(fd->get()); !synced) return synced;
  if (auto renamed = disk_->rename(fresh, path_); !renamed) return renamed;
  fd_ = *std::move(fd);
  size_ = live_bytes_ = bytes.size();
  is_dirty_ = false;
  // Until the folder is synced too a power cut may bring back the file of before.
  auto synced = disk_->sync_folder(path_);
  must_rewrite_ = !synced;
  return synced;
}

void Journal::remember(Newest& newest, const Record& record) {
  if (record.value.empty()) {
    newest.erase(record.key);
  } else {
    newest[record.key] = record.value;
  }
}

std::vector<Record> Journal::records() const {
  std::vector<Record> all;
  for (const auto& [key, value] : newest_) all.push_back({key, value});
  return all;
}

Result<void> Journal::append(const Record& record, bool sync) {
  if (is_dirty_) {
    // Behind the last whole record may be a piece of one: a record after it would never be read.
    if (auto cut = disk_->truncate(fd_.get(), size_); !cut) return cut;
    is_dirty_ = false;
  }
  const std::string bytes = encoded(record);
  if (auto written = disk_->write(fd_.get(), bytes); !written) {
    is_dirty_ = true;
    return written;
  }
  size_ += bytes.size();
  if (!sync) return {};
  auto synced = disk_->sync(fd_.get());
  must_rewrite_ = !synced;
  return synced;
}

Result<void> Journal::write(const Record& record, bool sync) {
  if (!must_rewrite_) {
    auto appended = append(record, sync);
    if (appended) {
      remember(newest_, record);
      // A failure leaves the present file as it is, and good.
      if (size_ > kRewriteAbove && size_ > 4 * live_bytes_) (void)rewrite(newest_);
    }
    if (appended || !must_rewrite_) return appended;
  }
  Newest next = newest_;
  remember(next, record);
  if (auto written = rewrite(next); !written) {
    return std::move(written).error().while_doing("writing the journal anew after a failed sync");
  }
  newest_ = std::move(next);
  return {};
}

}  // namespace accel::agent
