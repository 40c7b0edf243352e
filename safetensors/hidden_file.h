// HiddenFile: a file written under a name that nobody looks for, until publish() gives it its own in one step.
//
// The hidden name is drawn, so that two who write one path do not write into one file. What is not published is removed with the object.
//
// Threads:  one at a time. Errors  all throw Error kDiskFull, kFileIo.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string_view>
#include <system_error>
#include <utility>

#include "runtime/checkpoint/file_system.h"
#include "runtime/text/random_digits.h"
#include "runtime/unique_fd.h"

namespace accel::safetensors {

class HiddenFile {
 public:
  // Makes it beside `path`, with space for `bytes`.
  HiddenFile(std::filesystem::path path, std::uint64_t bytes)
      : path_(std::move(path)),
        folder_(path_.has_parent_path() ? path_.parent_path() : "."),
        hidden_(folder_ / ("." + path_.filename().string() + "." + random_digits(16) + ".tmp")),
        fd_(disk_.create_file(hidden_)) {
    try {
      disk_.reserve(fd_.get(), bytes, hidden_);
    } catch (...) {
      discard();
      throw;
    }
  }
  ~HiddenFile() { discard(); }
  HiddenFile(const HiddenFile&) = delete;
  HiddenFile& operator=(const HiddenFile&) = delete;

  void write_at(std::uint64_t offset, std::span<const std::byte> bytes) {
    disk_.write_at(fd_.get(), bytes, offset, hidden_);
  }
  void write_at(std::uint64_t offset, std::string_view text) {
    write_at(offset, std::as_bytes(std::span(text)));
  }

  [[nodiscard]] bool is_published() const noexcept { return !fd_; }
  // Durable, with its name, when it returns.
  void publish() {
    disk_.sync_file(fd_.get(), hidden_);
    disk_.rename(hidden_, path_);
    fd_.reset();
    disk_.sync_folder(folder_);
  }

 private:
  void discard() noexcept {
    if (!fd_) return;
    fd_.reset();
    std::error_code ignored;
    std::filesystem::remove(hidden_, ignored);
  }

  checkpoint::FileSystem& disk_ = checkpoint::real_file_system();
  std::filesystem::path path_;
  std::filesystem::path folder_;
  std::filesystem::path hidden_;
  UniqueFd fd_;  // until it is published
};

}  // namespace accel::safetensors
