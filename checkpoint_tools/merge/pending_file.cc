#include "checkpoint_tools/merge/pending_file.h"

#include <cerrno>
#include <iterator>
#include <string>
#include <system_error>
#include <utility>

#include <fcntl.h>

#include <accel/error.h>
#include <accel/result.h>

#include "checkpoint_tools/formats/file_slice.h"
#include "runtime/printable.h"
#include "runtime/text/random_digits.h"

namespace accel::launcher {
namespace {

namespace fs = std::filesystem;

// The folder, and the parents that get a new name when it is made.
std::vector<fs::path> folders_with_new_names(const fs::path& folder) {
  std::vector<fs::path> folders;
  std::error_code ignored;
  fs::path at = fs::absolute(folder, ignored);
  if (at.empty()) at = folder;  // where this process works is gone: making the folder says so
  for (;; at = at.parent_path()) {
    folders.push_back(at);
    if (fs::exists(at, ignored) || at == at.parent_path()) return folders;
  }
}

// All but the last, which was there.
std::vector<std::string> new_ones_of(const std::vector<fs::path>& folders) {
  return {folders.begin(), std::prev(folders.end())};
}

}  // namespace

// The name is drawn: two merges to one place must not write into one file, and what a killed one left must not be in the way.
PendingFile::PendingFile(checkpoint::FileSystem& file_system, fs::path path, std::uint64_t bytes)
    : file_system_(file_system),
      path_(std::move(path)),
      hidden_(path_.parent_path() /
              ("." + path_.filename().string() + "." + random_digits(16) + ".tmp")),
      changed_folders_(folders_with_new_names(path_.parent_path())) {
  leftovers_.emplace(hidden_.string(), new_ones_of(changed_folders_));
  try {
    file_system_.make_folder(path_.parent_path());
    file_ = file_system_.create_file(hidden_);
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
  if (!leftovers_) return;
  file_.reset();
  leftovers_->remove();
  leftovers_.reset();
}

void PendingFile::write(std::uint64_t offset, std::span<const std::byte> bytes) {
  file_system_.write_at(file_.get(), bytes, offset, hidden_);
}

void PendingFile::read(std::uint64_t offset, std::span<std::byte> out) {
  if (!reader_) reader_ = UniqueFd(::open(hidden_.c_str(), O_RDONLY | O_CLOEXEC));
  if (!reader_)
    throw Error(ErrorCode::kFileIo,
                "cannot read " + printable(hidden_.string()) + ": " + errno_text(errno));
  const std::string path = hidden_.string();
  or_throw(FileSlice{.fd = reader_.get(), .path = path, .begin = offset, .size = out.size()}.read(
      0, out));
}

void PendingFile::publish() {
  file_system_.sync_file(file_.get(), hidden_);
  file_system_.rename(hidden_, path_);
  leftovers_.reset();
  file_.reset();
  for (const fs::path& folder : changed_folders_) file_system_.sync_folder(folder);
}

}  // namespace accel::launcher
