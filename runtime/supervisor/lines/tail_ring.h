// TailRing: the newest 64 KiB of one stream, always in RAM, for the failure report.
//
// Threads:  one thread appends; any thread may read.
// Cost:     nothing until the first byte, then 64 KiB.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>

namespace accel::supervisor {

class TailRing {
 public:
  static constexpr std::size_t kCapacity = 64 * 1024;

  void append(std::string_view bytes) {
    if (bytes.empty()) return;
    const std::lock_guard lock(mutex_);
    if (!ring_) ring_ = std::make_unique_for_overwrite<char[]>(kCapacity);
    if (bytes.size() > kCapacity) {
      end_ += bytes.size() - kCapacity;
      bytes.remove_prefix(bytes.size() - kCapacity);
    }
    const std::size_t at = end_ % kCapacity;
    const std::size_t first = std::min(bytes.size(), kCapacity - at);
    std::memcpy(&ring_[at], bytes.data(), first);
    std::memcpy(&ring_[0], bytes.data() + first, bytes.size() - first);
    end_ += bytes.size();
  }

  // Oldest byte first.
  [[nodiscard]] std::string contents() const {
    const std::lock_guard lock(mutex_);
    if (end_ <= kCapacity) return {ring_.get(), end_};
    const std::size_t at = end_ % kCapacity;
    std::string text(&ring_[at], kCapacity - at);
    return text.append(&ring_[0], at);
  }

  // Bytes were passed by unseen: what came before them no longer joins what comes next.
  void forget() {
    const std::lock_guard lock(mutex_);
    end_ = 0;
  }

 private:
  mutable std::mutex mutex_;
  std::unique_ptr<char[]> ring_;
  std::size_t end_ = 0;  // bytes appended since the start or forget()
};

}  // namespace accel::supervisor
