// FaultyDisk: a file system that stops after a number of steps, forgets what was not synced, or is
// full.
//
// It works on the real one, so that what is left can be looked at with ordinary means, but does not
// wait for the device: a sync is only noted. After the
// step at which it stops every call throws, as if the process had been killed there: nothing cleans
// up. lose_unsynced() then does to the folder what a power cut may do.
#pragma once

#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <accel/error.h>

#include "runtime/checkpoint/file_system.h"
#include "runtime/checkpoint/folder_exchange.h"

namespace accel::test {

class FaultyDisk final : public checkpoint::FileSystem {
 public:
  // Steps beyond this number throw.
  void stop_after(int steps) { steps_left_ = steps; }
  // Writes beyond this number of bytes throw kDiskFull.
  void set_free_bytes(std::size_t bytes) { free_bytes_ = bytes; }
  // Syncs of this folder fail, or removals of it once it is there; an empty path: none.
  void fail_sync_of(const std::filesystem::path& folder) { bad_sync_ = folder; }
  void fail_removal_of(const std::filesystem::path& path) { bad_removal_ = path; }
  // Called once, when the next folder has been made.
  void after_make_folder(std::function<void()> then) { after_make_folder_ = std::move(then); }
  // Two names change places by three renames, each a step.
  void exchange_in_steps() { exchanges_in_steps_ = true; }
  [[nodiscard]] int steps() const { return steps_; }
  // That the device was asked to begin with.
  [[nodiscard]] std::uint64_t bytes_started() const { return bytes_started_; }

  UniqueFd create_file(const std::filesystem::path& path) override {
    step();
    unsynced_names_.insert(path);
    unsynced_data_.insert(path);
    return real_.create_file(path);
  }
  void reserve(int fd, std::uint64_t bytes, const std::filesystem::path& path) override {
    step();
    take("reserve", bytes, path);
    real_.reserve(fd, bytes, path);
  }
  UniqueFd open_file(const std::filesystem::path& path) override {
    step();
    return real_.open_file(path);
  }
  void write(int fd, std::span<const std::byte> bytes, const std::filesystem::path& path) override {
    step();
    take("write", bytes.size(), path);
    real_.write(fd, bytes, path);
  }
  // Into space that was reserved.
  void write_at(int fd,
                std::span<const std::byte> bytes,
                std::uint64_t offset,
                const std::filesystem::path& path) override {
    step();
    unsynced_data_.insert(path);
    real_.write_at(fd, bytes, offset, path);
  }
  // Promises nothing, and so nothing is noted.
  void start_write_out(int fd, std::uint64_t offset, std::uint64_t bytes) noexcept override {
    bytes_started_ += bytes;
    real_.start_write_out(fd, offset, bytes);
  }
  void sync_file(int /*fd*/, const std::filesystem::path& path) override {
    step();
    unsynced_data_.erase(path);
  }
  void make_folder(const std::filesystem::path& path) override {
    step();
    real_.make_folder(path);
    if (const auto then = std::exchange(after_make_folder_, {})) then();
  }
  void sync_folder(const std::filesystem::path& path) override {
    step();
    if (path == bad_sync_) throw Error(ErrorCode::kFileIo, "cannot sync " + path.string());
    std::erase_if(unsynced_names_, [&](const auto& name) { return name.parent_path() == path; });
    std::erase_if(unsynced_renames_,
                  [&](const auto& names) { return names.second.parent_path() == path; });
  }
  void rename(const std::filesystem::path& from, const std::filesystem::path& to) override {
    step();
    real_.rename(from, to);
    unsynced_renames_.emplace_back(from, to);
    unsynced_data_ = moved(unsynced_data_, from, to);
    unsynced_names_ = moved(unsynced_names_, from, to);
  }
  void exchange(const std::filesystem::path& a, const std::filesystem::path& b) override {
    if (exchanges_in_steps_) return checkpoint::exchange_by_renames(*this, a, b);
    step();
    real_.exchange(a, b);
  }
  void remove(const std::filesystem::path& path) override {
    step();
    if (path == bad_removal_ && std::filesystem::exists(path))
      throw Error(ErrorCode::kFileIo, "cannot remove " + path.string());
    real_.remove(path);
  }

  enum class Renames { kHappened, kLost };

  // Cuts files whose data was not synced to half, removes files whose names were not, and takes
  // back renames that were not (or not: a file system may have done them early).
  void lose_unsynced(Renames renames) {
    for (const auto& path : unsynced_data_) {
      std::error_code gone;
      const auto bytes = std::filesystem::file_size(path, gone);
      if (!gone) std::filesystem::resize_file(path, bytes / 2);
    }
    for (const auto& path : unsynced_names_) {
      std::error_code ignored;
      std::filesystem::remove(path, ignored);
    }
    if (renames == Renames::kHappened) return;
    for (auto it = unsynced_renames_.rbegin(); it != unsynced_renames_.rend(); ++it) {
      if (std::filesystem::exists(it->second)) std::filesystem::rename(it->second, it->first);
    }
  }

 private:
  using Paths = std::set<std::filesystem::path>;

  void take(const char* what, std::uint64_t bytes, const std::filesystem::path& path) {
    if (free_bytes_ && bytes > *free_bytes_) {
      throw Error(ErrorCode::kDiskFull,
                  std::string("the disk is full: cannot ") + what + " " + std::to_string(bytes) +
                      " bytes for " + path.string());
    }
    if (free_bytes_) *free_bytes_ -= bytes;
  }

  void step() {
    ++steps_;
    if (steps_left_ && --*steps_left_ < 0) throw Error(ErrorCode::kInternal, "stopped by the test");
  }

  // `paths` after `from` got the name `to`.
  static Paths moved(const Paths& paths,
                     const std::filesystem::path& from,
                     const std::filesystem::path& to) {
    Paths result;
    for (const auto& path : paths) {
      const auto relative = path.lexically_relative(from);
      const bool is_below = !relative.empty() && *relative.begin() != "..";
      result.insert(is_below ? to / relative : path);
    }
    return result;
  }

  checkpoint::FileSystem& real_ = checkpoint::real_file_system();
  std::optional<int> steps_left_;
  std::optional<std::size_t> free_bytes_;
  int steps_ = 0;
  std::uint64_t bytes_started_ = 0;
  std::function<void()> after_make_folder_;
  std::filesystem::path bad_sync_;
  std::filesystem::path bad_removal_;
  bool exchanges_in_steps_ = false;
  Paths unsynced_data_;
  Paths unsynced_names_;
  std::vector<std::pair<std::filesystem::path, std::filesystem::path>> unsynced_renames_;
};

}  // namespace accel::test
