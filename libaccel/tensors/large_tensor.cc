#include "libaccel/tensors/large_tensor.h"

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>

#include <ATen/EmptyTensor.h>
#include <ATen/ops/empty.h>
#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>
#include <sys/mman.h>

#include <accel/error.h>

#include "libaccel/tensors/alignment.h"

namespace accel {
namespace {

// Smaller ones would mostly be what a huge page leaves over.
constexpr std::size_t kLargeFrom = 2 * kHugePage;

// A mapping that begins anywhere and contains whole huge pages for a tensor.
class Mapping {
 public:
  explicit Mapping(std::size_t bytes)
      : size_(rounded_up(bytes, kHugePage) + kHugePage),
        begin_(::mmap(nullptr, size_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)) {
    if (begin_ == MAP_FAILED) {
      throw Error(ErrorCode::kOutOfMemory,
                  "cannot map " + std::to_string(size_) + " bytes: " + errno_text(errno));
    }
    // What is left over at the end takes ordinary pages, not another huge one.
    (void)::madvise(pages(), bytes / kHugePage * kHugePage, MADV_HUGEPAGE);
  }
  ~Mapping() { ::munmap(begin_, size_); }
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;

  [[nodiscard]] void* pages() const noexcept {
    return reinterpret_cast<void*>(rounded_up(reinterpret_cast<std::uintptr_t>(begin_), kHugePage));
  }

 private:
  std::size_t size_;
  void* begin_;
};

class HugePages final : public c10::Allocator {
 public:
  c10::DataPtr allocate(std::size_t bytes) override {
    if (bytes < kLargeFrom) return c10::GetCPUAllocator()->allocate(bytes);
    auto mapping = std::make_unique<Mapping>(bytes);
    void* const pages = mapping->pages();
    return {pages,
            mapping.release(),
            [](void* owner) { delete static_cast<Mapping*>(owner); },
            c10::Device(c10::DeviceType::CPU)};
  }
  void copy_data(void* to, const void* from, std::size_t bytes) const override {
    std::memcpy(to, from, bytes);
  }
};

}  // namespace

at::Tensor empty_large_tensor(at::IntArrayRef shape, const at::TensorOptions& options) {
  if (!options.device().is_cpu()) return at::empty(shape, options);
  // Never destroyed: tensors refer to it.
  static HugePages& huge_pages = *new HugePages;
  return at::Tensor(at::detail::empty_generic(shape,
                                              &huge_pages,
                                              c10::DispatchKeySet(c10::DispatchKey::CPU),
                                              c10::typeMetaToScalarType(options.dtype()),
                                              std::nullopt));
}

}  // namespace accel
