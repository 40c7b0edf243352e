#include "libaccel/interception/cpu_allocator.h"

#include <atomic>

#include <c10/core/CPUAllocator.h>

namespace accel::interception {
namespace {

struct Standing {
  CpuMemory& memory;
  const Standing* behind;
};

std::atomic<const Standing*> g_first_standing{nullptr};

class StandingAllocator final : public c10::Allocator {
 public:
  static void install() {
    static const bool is_installed = [] {
      others_ = c10::GetCPUAllocator();
      c10::SetCPUAllocator(new StandingAllocator());
      return true;
    }();
    (void)is_installed;
  }

  c10::DataPtr allocate(std::size_t bytes) override {
    for (const Standing* one = g_first_standing.load(); one != nullptr; one = one->behind) {
      if (c10::DataPtr memory = one->memory.allocate(bytes)) return memory;
    }
    return others_->allocate(bytes);
  }
  // For raw_allocate(), whose memory may be anybody's. What allocate() returns frees itself by another one.
  [[nodiscard]] c10::DeleterFnPtr raw_deleter() const override {
    return others_->raw_deleter() == nullptr ? nullptr : &free_either;
  }
  void copy_data(void* to, const void* from, std::size_t bytes) const override {
    default_copy_data(to, from, bytes);
  }

 private:
  static void free_either(void* memory) {
    for (const Standing* one = g_first_standing.load(); one != nullptr; one = one->behind) {
      if (one->memory.free(memory)) return;
    }
    others_->raw_deleter()(memory);
  }

  static inline c10::Allocator* others_ = nullptr;
};

}  // namespace

void stand_before_allocator(CpuMemory& memory) {
  auto* const added = new Standing{memory, g_first_standing.load()};  // NOLINT: never freed
  while (!g_first_standing.compare_exchange_weak(added->behind, added)) {
  }
  StandingAllocator::install();
}

}  // namespace accel::interception
