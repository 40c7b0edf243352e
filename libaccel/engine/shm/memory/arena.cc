#include "libaccel/engine/shm/memory/arena.h"

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <string>
#include <utility>

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "libaccel/tensors/alignment.h"
#include "runtime/printable.h"

namespace accel::shm {
namespace {

// Of addresses, not of memory: more than the gradients of a model that the CPUs of a node train.
constexpr std::size_t kSize = std::size_t{64} << 30;

std::size_t whole_huge_pages(std::size_t bytes) {
  return rounded_up(std::max<std::size_t>(bytes, 1), kHugePage);
}

// The kernel ends processes whose files pass RLIMIT_FSIZE.
std::size_t allowed_size() {
  rlimit limit = {};
  if (::getrlimit(RLIMIT_FSIZE, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return kSize;
  return std::min<std::size_t>(kSize, limit.rlim_cur / kHugePage * kHugePage);
}

Error no_memory(std::size_t bytes, const char* what) {
  return Error(ErrorCode::kOutOfMemory,
               std::to_string(bytes) + " bytes of shared memory for tensors cannot be " + what +
                   ": " + errno_text(errno));
}

// Begins at a huge page, or the kernel would have to split them.
std::byte* map_whole(int memory, std::size_t size) {
  void* const room = ::mmap(
      nullptr, size + kHugePage, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (room == MAP_FAILED) return nullptr;
  auto* const begin = static_cast<std::byte*>(room);
  const std::size_t before =
      (kHugePage - reinterpret_cast<std::uintptr_t>(begin) % kHugePage) % kHugePage;
  void* const mapped =
      ::mmap(begin + before, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, memory, 0);
  if (mapped == MAP_FAILED) {
    const int error = errno;
    ::munmap(room, size + kHugePage);
    errno = error;
    return nullptr;
  }
  if (before > 0) ::munmap(begin, before);
  if (before < kHugePage) ::munmap(begin + before + size, kHugePage - before);
  ::madvise(mapped, size, MADV_HUGEPAGE);
  ::madvise(mapped, size, MADV_DONTDUMP);
  return static_cast<std::byte*>(mapped);
}

}  // namespace

Result<std::shared_ptr<Arena>> Arena::create() {
  const std::size_t size = allowed_size();
  UniqueFd memory(::memfd_create("accel-tensors", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!memory || size == 0 || ::ftruncate(memory.get(), static_cast<off_t>(size)) != 0 ||
      ::fcntl(memory.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0)
    return no_memory(size, "had");
  std::byte* const begin = map_whole(memory.get(), size);
  if (begin == nullptr) return no_memory(size, "mapped");
  return std::shared_ptr<Arena>(new Arena(std::move(memory), begin, size));
}

Arena::~Arena() {
  ::munmap(begin_, size_);
}

Result<std::byte*> Arena::allocate(std::size_t bytes) {
  const std::size_t size = whole_huge_pages(bytes);
  std::size_t offset = 0;
  {
    const std::lock_guard lock(mutex_);
    for (const auto& [begin, taken] : taken_) {  // the first gap that is large enough
      if (begin - offset >= size) break;
      offset = begin + taken;
    }
    if (size > size_ - offset) {
      errno = ENOSPC;
      return no_memory(bytes, "had");
    }
    taken_[offset] = size;
  }
  std::byte* const room = begin_ + offset;
#ifdef MADV_POPULATE_WRITE
  // A page that is missing would be a signal later.
  if (::madvise(room, size, MADV_POPULATE_WRITE) != 0 && errno != EINVAL) {
    const Error error = no_memory(bytes, "had");
    release(room);
    return error;
  }
#endif
  return room;
}

void Arena::release(std::byte* room) noexcept {
  const std::lock_guard lock(mutex_);
  const auto found = taken_.find(static_cast<std::size_t>(room - begin_));
  if (found == taken_.end()) return;
  ::fallocate(memory_.get(),
              FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
              static_cast<off_t>(found->first),
              static_cast<off_t>(found->second));
  taken_.erase(found);
}

bool Arena::contains(const std::byte* data, std::size_t bytes) const noexcept {
  return data >= begin_ && data < begin_ + size_ &&
         bytes <= static_cast<std::size_t>(begin_ + size_ - data);
}

std::size_t Arena::offset_of(const std::byte* data) const noexcept {
  return static_cast<std::size_t>(data - begin_);
}

Result<ArenaView> ArenaView::open(const MemoryOffer& offer) {
  const auto memory = open_offer(offer);
  if (!memory) return memory.error();
  struct stat info {};
  if (::fstat(memory->get(), &info) != 0 || info.st_size <= 0) return no_memory(0, "mapped");
  const auto size = static_cast<std::size_t>(info.st_size);
  std::byte* const begin = map_whole(memory->get(), size);
  if (begin == nullptr) return no_memory(size, "mapped");
  return ArenaView(begin, size);
}

ArenaView::ArenaView(ArenaView&& other) noexcept
    : begin_(std::exchange(other.begin_, nullptr)), size_(other.size_) {}

ArenaView::~ArenaView() {
  if (begin_ != nullptr) ::munmap(begin_, size_);
}

std::byte* ArenaView::at(std::size_t offset, std::size_t bytes) const noexcept {
  return offset <= size_ && bytes <= size_ - offset ? begin_ + offset : nullptr;
}

}  // namespace accel::shm
