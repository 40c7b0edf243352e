#include "libaccel/engine/shm/memory/group_memory.h"

#include <cerrno>
#include <string>
#include <utility>

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "libaccel/tensors/alignment.h"
#include "runtime/printable.h"

namespace accel::shm {
namespace {

constexpr std::size_t kPage = 4096;
constexpr std::size_t kMaxSlotBytes = std::size_t{1} << 30U;
constexpr std::uint64_t kLayout = 5;  // raised with every change of what stands where

std::size_t lines_bytes(int world_size) {
  const std::size_t bytes = sizeof(RankLine) * static_cast<std::size_t>(world_size);
  return rounded_up(bytes, kPage);
}

// The more ranks, the smaller the ring of a pair: all of them together stay below 300 MiB.
std::size_t ring_size(int world_size) {
  if (world_size <= 8) return std::size_t{64} * 1024;
  return world_size <= 64 ? std::size_t{16} * 1024 : kPage;
}

std::size_t rings_bytes(int world_size) {
  const auto size = static_cast<std::size_t>(world_size);
  return size * size * (sizeof(Ring) + ring_size(world_size));
}

// A page for the calls, the bell and the cores, and the slots.
std::size_t room_bytes(const GroupShape& shape) {
  return kPage + 2 * shape.slot_bytes;
}

Result<void> check_shape(const GroupShape& shape) {
  if (shape.world_size >= 1 && shape.world_size <= kMaxRanks && shape.slot_bytes > 0 &&
      shape.slot_bytes <= kMaxSlotBytes && shape.slot_bytes % kPage == 0 &&
      shape.slot_bytes >= kCacheLine * static_cast<std::size_t>(shape.world_size))
    return {};
  return Error(ErrorCode::kInvalidArgument,
               "a group of " + std::to_string(shape.world_size) + " ranks with slots of " +
                   std::to_string(shape.slot_bytes) + " bytes is not possible",
               "1 to " + std::to_string(kMaxRanks) +
                   " ranks, slots of whole pages, with 64 bytes for each rank and 1 GiB at most");
}

// Whole pages around the bytes are taken.
Result<void> take_pages(std::byte* begin, std::size_t bytes) {
#ifdef MADV_POPULATE_WRITE
  const std::size_t before = reinterpret_cast<std::uintptr_t>(begin) % kPage;
  if (::madvise(begin - before, bytes + before, MADV_POPULATE_WRITE) == 0 || errno == EINVAL)
    return {};
  return Error(
      ErrorCode::kOutOfMemory,
      std::to_string(bytes) + " bytes of shared memory cannot be had: " + errno_text(errno));
#else
  (void)begin, (void)bytes;
  return {};
#endif
}

Error wrong_size(std::size_t bytes, std::size_t expected) {
  return Error(ErrorCode::kInvalidArgument,
               "the shared memory of the group has " + std::to_string(bytes) + " bytes, expected " +
                   std::to_string(expected));
}

}  // namespace

std::uint64_t GroupShape::fingerprint() const noexcept {
  return kLayout << 56 | static_cast<std::uint64_t>(world_size) << 40 | slot_bytes;
}

std::size_t GroupMemory::size_of(const GroupShape& shape) noexcept {
  return lines_bytes(shape.world_size) +
         static_cast<std::size_t>(shape.world_size) * room_bytes(shape) +
         rings_bytes(shape.world_size);
}

Result<UniqueFd> GroupMemory::create(const GroupShape& shape) {
  if (auto possible = check_shape(shape); !possible) return std::move(possible).error();
  UniqueFd memory(::memfd_create("accel-collectives", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!memory || ::ftruncate(memory.get(), static_cast<off_t>(size_of(shape))) != 0 ||
      ::fcntl(memory.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) {
    return Error(ErrorCode::kOutOfMemory,
                 "no shared memory of " + std::to_string(size_of(shape)) +
                     " bytes can be had: " + errno_text(errno));
  }
  return memory;
}

Result<GroupMemory> GroupMemory::map(int memory, const GroupShape& shape) {
  if (auto possible = check_shape(shape); !possible) return std::move(possible).error();
  struct stat info {};
  const std::size_t expected = size_of(shape);
  const bool has_size = ::fstat(memory, &info) == 0;
  if (!has_size || static_cast<std::size_t>(info.st_size) != expected)
    return wrong_size(static_cast<std::size_t>(info.st_size), expected);
  void* begin = ::mmap(nullptr, expected, PROT_READ | PROT_WRITE, MAP_SHARED, memory, 0);
  if (begin == MAP_FAILED) {
    return Error(ErrorCode::kOutOfMemory,
                 std::to_string(expected) +
                     " bytes of shared memory cannot be mapped: " + errno_text(errno));
  }
  return GroupMemory(static_cast<std::byte*>(begin), shape);
}

Result<GroupMemory> GroupMemory::on(SharedMemory region, const GroupShape& shape) {
  if (auto possible = check_shape(shape); !possible) return std::move(possible).error();
  if (region.size() != size_of(shape)) return wrong_size(region.size(), size_of(shape));
  GroupMemory memory(region.data(), shape);
  memory.region_ = std::move(region);
  return memory;
}

GroupMemory::GroupMemory(GroupMemory&& other) noexcept
    : begin_(std::exchange(other.begin_, nullptr)),
      shape_(other.shape_),
      region_(std::move(other.region_)) {}

GroupMemory::~GroupMemory() {
  if (begin_ != nullptr && !region_) ::munmap(begin_, size_of(shape_));
}

Result<void> GroupMemory::reserve(int rank) const {
  const auto size = static_cast<std::size_t>(shape_.world_size);
  // What all write: the lines, and the states of the rings.
  if (auto taken = take_pages(begin_, lines_bytes(shape_.world_size)); !taken) return taken;
  auto* const states = reinterpret_cast<std::byte*>(&ring(0, 0));
  if (auto taken = take_pages(states, size * size * sizeof(Ring)); !taken) return taken;
  if (auto taken = take_pages(room(rank), room_bytes(shape_)); !taken) return taken;
  return take_pages(ring_room(rank, 0), size * ring_bytes());
}

RankLine& GroupMemory::line(int rank) const noexcept {
  return reinterpret_cast<RankLine*>(begin_)[rank];
}

std::byte* GroupMemory::room(int rank) const noexcept {
  return begin_ + lines_bytes(shape_.world_size) +
         static_cast<std::size_t>(rank) * room_bytes(shape_);
}

Call& GroupMemory::call(int rank, unsigned parity) const noexcept {
  // A cache line each: it is written beside the slot of the same parity.
  return *reinterpret_cast<Call*>(room(rank) + kCacheLine * parity);
}

Bell& GroupMemory::bell(int rank) const noexcept {
  return *reinterpret_cast<Bell*>(room(rank) + kCacheLine * 2);
}

CoreSet& GroupMemory::cores(int rank) const noexcept {
  return *reinterpret_cast<CoreSet*>(room(rank) + kCacheLine * 4);
}

BufferLocation& GroupMemory::location(int rank, unsigned parity) const noexcept {
  return *reinterpret_cast<BufferLocation*>(room(rank) + kCacheLine * (6 + parity));
}

MemoryOffer& GroupMemory::arena(int rank) const noexcept {
  return *reinterpret_cast<MemoryOffer*>(room(rank) + kCacheLine * 8);
}

// In the room of rank 0.
std::atomic<std::uint64_t>& GroupMemory::stop_word() const noexcept {
  return *reinterpret_cast<std::atomic<std::uint64_t>*>(room(0) + kCacheLine * 10);
}

// The states of all rings come first, then their bytes.
Ring& GroupMemory::ring(int from, int to) const noexcept {
  auto* const rings = reinterpret_cast<Ring*>(room(shape_.world_size));
  return rings[from * shape_.world_size + to];
}

std::byte* GroupMemory::ring_room(int from, int to) const noexcept {
  const auto size = static_cast<std::size_t>(shape_.world_size);
  const std::size_t number = static_cast<std::size_t>(from) * size + static_cast<std::size_t>(to);
  return room(shape_.world_size) + size * size * sizeof(Ring) + number * ring_bytes();
}

std::size_t GroupMemory::ring_bytes() const noexcept {
  return ring_size(shape_.world_size);
}

std::byte* GroupMemory::slot(int rank, unsigned parity) const noexcept {
  return room(rank) + kPage + parity * shape_.slot_bytes;
}

}  // namespace accel::shm
