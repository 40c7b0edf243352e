#include "launcher/merge/pending_file.h"

#include <string>
#include <system_error>
#include <utility>

#include <unistd.h>

namespace accel::launcher {

// The process is in the name: two merges to one place must not write into one file.
PendingFile::PendingFile(checkpoint::FileSystem& file_system,
                         std::filesystem::path path,
                         std::uint64_t bytes)
    : file_system_(file_system),
      path_(std::move(path)),
      hidden_(path_.parent_path() /
              ("." + path_.filename().string() + "." + std::to_string(::getpid()) + ".tmp")) {
  file_system_.make_folder(path_.parent_path());
  file_ = file_system_.create_file(hidden_);
  try {
    file_system_.reserve(file_.get(), bytes, hidden_);
  } catch (...) {
    discard();
    throw;
  }
}

PendingFile::~PendingFile() {
  discard();
}

void PendingFile::discard() noexcept {
  if (!file_) return;
  file_.reset();
  std::error_code ignored;
  std::filesystem::remove(hidden_, ignored);
}

void PendingFile::write(std::uint64_t offset, std::span<const std::byte> bytes) {
  file_system_.write_at(file_.get(), bytes, offset, hidden_);
}

void PendingFile::publish() {
  file_system_.sync_file(file_.get(), hidden_);
  file_system_.rename(hidden_, path_);
  file_.reset();
  file_system_.sync_folder(path_.parent_path());
}

}  // namespace accel::launcher
