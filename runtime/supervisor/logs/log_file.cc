// splice(2) moves pages from the pipe to the file, unless lines of it are looked for; it refuses files opened with O_APPEND, so the
// file's own position counts, and file systems without support answer EINVAL: then bytes are copied
// instead.
//
// Rotation: the next file is opened under another name before the full one is renamed, so that a disk or a
// folder that takes no new file costs no byte.

#include "runtime/supervisor/logs/log_file.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <string_view>
#include <utility>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <accel/error.h>

#include "runtime/supervisor/logs/log_layout.h"
#include "runtime/write_all.h"

namespace accel::supervisor {
namespace {

constexpr int kOpenFlags = O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NOCTTY;

// The descriptor is of no more use; a new one may be.
bool needs_reopening(int error) {
  return error == ESTALE || error == EBADF || error == ENXIO;
}

}  // namespace

LogFile::LogFile(std::filesystem::path path,
                 LogRotation rotation,
                 std::shared_ptr<NoticeBoard> notices,
                 TimePoint now,
                 std::optional<LineDuplicate> duplicate)
    : path_(std::move(path)),
      rotation_(rotation),
      duplicate_(std::move(duplicate)),
      notices_(std::move(notices)),
      ledger_(path_),
      last_check_(now),
      can_splice_(!duplicate_) {
  if (duplicate_) duplicate_->log->open();
  if (rotation_.bytes > 0) remove_rotated();
  if (!open(Opening::kFirst)) fail(errno, now);
}

LogFile::Taken LogFile::take_from(int pipe, TimePoint now) {
  if (ledger_.is_dropping() && !try_again(now)) return discard_from(pipe);
  reopen_when_deleted(now);
  if (rotation_.bytes > 0) rotate_when_full(now);
  const std::size_t limit = room();
  if (!can_splice_) return copy_from(pipe, limit, now);

  const ssize_t moved =
      ::splice(pipe, nullptr, file_.get(), nullptr, limit, SPLICE_F_MOVE | SPLICE_F_NONBLOCK);
  if (moved >= 0) return count(moved);
  if (errno == EAGAIN || errno == EINTR) return Taken::kNothing;
  if (errno == EINVAL) {
    can_splice_ = false;
    return copy_from(pipe, limit, now);
  }
  fail(errno, now);
  return discard_from(pipe);
}

void LogFile::finish(std::uint64_t dropped_before) {
  if (duplicate_) duplicate_->log->append(duplicate_->filter.finish());
  if (ledger_.is_dropping()) {
    ledger_.drop(dropped_before);
    if (file_ || open(Opening::kAgain)) write_marker(ledger_.dropped());
  } else if (dropped_before > 0) {
    write_marker(dropped_before);
  }
  notices_->post_if(ledger_.last_words());
}

bool LogFile::open(Opening opening) {
  std::error_code ignored;  // open() says what is wrong
  std::filesystem::create_directories(path_.parent_path(), ignored);
  const int truncation = opening == Opening::kFirst ? O_TRUNC : 0;
  file_.reset(::open(path_.c_str(), kOpenFlags | truncation, 0644));
  if (!file_) return false;
  ::lseek(file_.get(), 0, SEEK_END);
  return true;
}

// Whether the file can be written again, with the marker in it.
bool LogFile::try_again(TimePoint now) {
  if (!ledger_.should_retry(now)) return false;
  if ((!file_ && !open(Opening::kAgain)) || !write_marker(ledger_.dropped())) {
    fail(errno, now);
    return false;
  }
  notices_->post_if(ledger_.end(now));
  return true;
}

bool LogFile::write_marker(std::uint64_t dropped) {
  if (dropped == 0) return true;
  const off_t before = ::lseek(file_.get(), 0, SEEK_CUR);
  const std::string marker = drop_marker(dropped, at_line_start());
  std::string_view rest = marker;
  const int error = write_all(file_.get(), rest);
  if (error == 0) return true;
  // Half a marker says something wrong.
  if (rest.size() < marker.size() && ::ftruncate(file_.get(), before) == 0) {
    ::lseek(file_.get(), before, SEEK_SET);
  }
  errno = error;
  return false;
}

bool LogFile::at_line_start() const {
  const off_t position = ::lseek(file_.get(), 0, SEEK_CUR);
  char last = '\n';
  return position <= 0 || ::pread(file_.get(), &last, 1, position - 1) != 1 || last == '\n';
}

void LogFile::reopen_when_deleted(TimePoint now) {
  if (now - last_check_ < DropLedger::kRetryEvery) return;
  last_check_ = now;
  reopen_if_deleted();
}

void LogFile::reopen_if_deleted() {
  struct stat info = {};
  if (::fstat(file_.get(), &info) != 0 || info.st_nlink > 0) return;
  UniqueFd deleted = std::move(file_);
  if (open(Opening::kAgain)) {
    notices_->post(path_.string() + ": was deleted while in use; a new file was begun");
  } else {
    file_ =
        std::move(deleted);  // unreachable by name, but nothing is lost for whoever holds it open
  }
}

// Of a job with the same name before.
void LogFile::remove_rotated() const {
  std::error_code failure;  // no folder yet, or open() says what is wrong
  std::filesystem::directory_iterator entry(path_.parent_path(), failure);
  for (; !failure && entry != std::filesystem::directory_iterator(); entry.increment(failure)) {
    const std::string name = entry->path().filename();
    if (start_of_rotated(path_.filename().string(), name)) ::unlink(entry->path().c_str());
  }
}

void LogFile::rotate_when_full(TimePoint now) {
  if (size() < rotation_.bytes) return;
  if (last_rotation_failure_ && now - *last_rotation_failure_ < DropLedger::kRetryEvery) return;
  reopen_if_deleted();
  if (size() < rotation_.bytes) return;
  const int error = rotate(size());
  if (error == 0) return last_rotation_failure_.reset();
  last_rotation_failure_ = now;
  if (last_rotation_notice_ && now - *last_rotation_notice_ < DropLedger::kNoticeEvery) return;
  last_rotation_notice_ = now;
  notices_->post(path_.string() + ": is full and cannot be renamed: " + errno_text(error) +
                 "; it grows on until it can");
}

// Returns 0, or the error that left everything as it was.
int LogFile::rotate(std::uint64_t size) {
  const std::string next_name = path_.string() + ".next";
  UniqueFd next(::open(next_name.c_str(), kOpenFlags | O_TRUNC, 0644));
  if (!next) return errno;
  const std::string full_name = rotated_name(path_.string(), start_);
  int error = std::rename(path_.c_str(), full_name.c_str()) == 0 ? 0 : errno;
  if (error == 0 && std::rename(next_name.c_str(), path_.c_str()) != 0) {
    error = errno;
    std::rename(full_name.c_str(), path_.c_str());
  }
  if (error != 0) {
    ::unlink(next_name.c_str());
    return error;
  }
  file_ = std::move(next);
  rotated_.push_back(start_);
  start_ += size;
  while (rotated_.size() > static_cast<std::size_t>(rotation_.keep)) {
    ::unlink(rotated_name(path_.string(), rotated_.front()).c_str());
    rotated_.pop_front();
  }
  return 0;
}

std::uint64_t LogFile::size() const {
  const off_t position = ::lseek(file_.get(), 0, SEEK_CUR);
  return position > 0 ? static_cast<std::uint64_t>(position) : 0;
}

// What the next portion may have. One that could not be rotated takes whole portions.
std::size_t LogFile::room() const {
  if (rotation_.bytes == 0) return kStep;
  const std::uint64_t held = size();
  if (held >= rotation_.bytes) return kStep;
  return static_cast<std::size_t>(std::min<std::uint64_t>(kStep, rotation_.bytes - held));
}

LogFile::Taken LogFile::copy_from(int pipe, std::size_t limit, TimePoint now) {
  std::array<char, 64 * 1024> buffer;
  const ssize_t got = ::read(pipe, buffer.data(), std::min(buffer.size(), limit));
  if (got < 0) return Taken::kNothing;
  std::string_view rest(buffer.data(), static_cast<std::size_t>(got));
  duplicate(rest);
  if (const int error = write_all(file_.get(), rest); error != 0) {
    fail(error, now);
    ledger_.drop(rest.size());
  }
  return count(got);
}

LogFile::Taken LogFile::discard_from(int pipe) {
  std::array<char, 64 * 1024> buffer;
  const ssize_t got = ::read(pipe, buffer.data(), buffer.size());
  if (got < 0) return Taken::kNothing;
  duplicate({buffer.data(), static_cast<std::size_t>(got)});
  ledger_.drop(static_cast<std::uint64_t>(got));
  return count(got);
}

void LogFile::duplicate(std::string_view bytes) {
  if (duplicate_) duplicate_->log->append(duplicate_->filter.feed(bytes));
}

LogFile::Taken LogFile::count(ssize_t bytes) {
  taken_ += static_cast<std::uint64_t>(bytes);
  return bytes == 0 ? Taken::kEnd : Taken::kSome;
}

void LogFile::fail(int error, TimePoint now) {
  if (needs_reopening(error)) file_.reset();
  notices_->post_if(
      ledger_.begin(errno_text(error) + "; output is dropped until it can be written again", now));
}

}  // namespace accel::supervisor
