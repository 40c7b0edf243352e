#include "libaccel/engine/optim/step_memory.h"

#include <cstddef>
#include <mutex>
#include <unordered_map>

#include <sys/mman.h>

#include "libaccel/interception/cpu_allocator.h"
#include "runtime/page_size.h"

namespace accel {
namespace {

constexpr std::size_t kSmallest = std::size_t{1} << 20;

// Free memory of a thread, by size.
using FreeBlocks = std::unordered_multimap<std::size_t, void*>;

thread_local FreeBlocks* free_blocks = nullptr;  // while a StepMemory lives

class MappedBlocks final : public interception::CpuMemory {
 public:
  static MappedBlocks& get() {
    static auto* const all =
        new MappedBlocks();  // tensors may outlive what a program's end destroys
    return *all;
  }

  at::DataPtr allocate(std::size_t bytes) override {
    if (free_blocks == nullptr || bytes < kSmallest) return {};
    const std::size_t size = whole_pages(bytes);
    void* memory = nullptr;
    if (const auto found = free_blocks->find(size); found != free_blocks->end()) {
      memory = found->second;
      free_blocks->erase(found);
    } else {
      memory = ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
      if (memory == MAP_FAILED) return {};  // those behind say that there is none
    }
    const std::lock_guard lock(mutex_);
    size_of_.emplace(memory, size);
    return {memory, memory, [](void* held) { get().free(held); }, at::Device(at::kCPU)};
  }

  bool free(void* memory) override {
    std::size_t size = 0;
    {
      const std::lock_guard lock(mutex_);
      const auto found = size_of_.find(memory);
      if (found == size_of_.end()) return false;
      size = found->second;
      size_of_.erase(found);
    }
    if (free_blocks != nullptr) {
      free_blocks->emplace(size, memory);
    } else {
      ::munmap(memory, size);
    }
    return true;
  }

 private:
  std::mutex mutex_;
  std::unordered_map<void*, std::size_t> size_of_;  // of those that are taken
};

}  // namespace

StepMemory::StepMemory() {
  static const bool stands_before =
      (interception::stand_before_allocator(MappedBlocks::get()), true);
  (void)stands_before;
  free_blocks = new FreeBlocks();
}

StepMemory::~StepMemory() {
  for (const auto& [size, memory] : *free_blocks) ::munmap(memory, size);
  delete free_blocks;
  free_blocks = nullptr;
}

}  // namespace accel
