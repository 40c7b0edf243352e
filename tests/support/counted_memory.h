// CountedMemory: what tensors on the CPU take, for plans to be compared with.
//
// From the first get() on it gives tensors their memory, and counts the bytes that were asked for.
//
// Threads:  any; a lock.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <mutex>
#include <unordered_map>

#include <c10/core/Allocator.h>

#include "libaccel/interception/cpu_allocator.h"

namespace accel::test {

class CountedMemory final : public interception::CpuMemory {
 public:
  static CountedMemory& get() {
    static CountedMemory* const memory = [] {
      auto* const made = new CountedMemory();  // NOLINT: for good
      interception::stand_before_allocator(*made);
      return made;
    }();
    return *memory;
  }
  at::DataPtr allocate(std::size_t bytes) override {
    if (bytes == 0) return {};
    void* const block = std::aligned_alloc(64, (bytes + 63) / 64 * 64);
    const std::lock_guard lock(mutex_);
    sizes_[block] = {static_cast<std::int64_t>(bytes), static_cast<std::int64_t>(bytes)};
    live_ += static_cast<std::int64_t>(bytes);
    peak_ = std::max(peak_, live_);
    report(block, static_cast<std::int64_t>(bytes));
    return {block, block, [](void* own) { get().free(own); }, at::kCPU};
  }
  bool free(void* block) override {
    {
      const std::lock_guard lock(mutex_);
      const auto found = sizes_.find(block);
      if (found == sizes_.end()) return false;
      live_ -= found->second.counted;
      report(block, -found->second.bytes);
      sizes_.erase(found);
    }
    std::free(block);
    return true;
  }

  // From now on: what was there before counts as nothing, until it goes.
  void begin() {
    const std::lock_guard lock(mutex_);
    live_ = 0;
    peak_ = 0;
    for (auto& [block, size] : sizes_) size.counted = 0;
  }
  [[nodiscard]] std::int64_t peak() const {
    const std::lock_guard lock(mutex_);
    return peak_;
  }

 private:
  struct Size {
    std::int64_t bytes = 0;
    std::int64_t counted = 0;
  };

  // As LibTorch's allocator does.
  static void report(void* block, std::int64_t bytes) {
    c10::reportMemoryUsageToProfiler(block, bytes, 0, 0, c10::Device(c10::kCPU));
  }

  mutable std::mutex mutex_;
  std::unordered_map<void*, Size> sizes_;
  std::int64_t live_ = 0;
  std::int64_t peak_ = 0;
};

}  // namespace accel::test
