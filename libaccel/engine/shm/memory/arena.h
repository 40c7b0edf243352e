// Arena: memory of one rank that the others of its group can map, for tensors that are reduced where they lie.
//
// It is a memfd of a size that nobody fills: room is handed out from it, and its pages exist while somebody has that room.
// The others map all of it once (ArenaView) and need nothing but an offset afterwards.
//
// Threads:  any; allocate() and release() are synchronised inside.
// Cost:     room in whole huge pages (2 MiB), since that is how the kernel maps it best; pages are taken by allocate().
// Source:   memfd_create(2), fallocate(2) for the holes.
#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <mutex>

#include <accel/result.h>

#include "libaccel/engine/shm/memory/memory_offer.h"
#include "runtime/unique_fd.h"

namespace accel::shm {

class Arena {
 public:
  // Errors  kOutOfMemory: no such memory can be had, or mapped.
  [[nodiscard]] static Result<std::shared_ptr<Arena>> create();
  ~Arena();
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  // Zeros, until release() gets the same address. Errors  kOutOfMemory.
  [[nodiscard]] Result<std::byte*> allocate(std::size_t bytes);
  void release(std::byte* room) noexcept;

  [[nodiscard]] bool contains(const std::byte* data, std::size_t bytes) const noexcept;
  [[nodiscard]] std::size_t offset_of(const std::byte* data) const noexcept;
  [[nodiscard]] std::size_t size() const noexcept { return size_; }
  // For ArenaView::open() of the others.
  [[nodiscard]] Result<MemoryOffer> offer() const { return offer_memory(memory_.get()); }

 private:
  Arena(UniqueFd memory, std::byte* begin, std::size_t size)
      : memory_(std::move(memory)), begin_(begin), size_(size) {}

  UniqueFd memory_;
  std::byte* begin_;
  std::size_t size_;
  std::mutex mutex_;
  std::map<std::size_t, std::size_t> taken_;  // offset to bytes
};

// The arena of another rank.
class ArenaView {
 public:
  // Errors  those of open_offer(); kOutOfMemory: it cannot be mapped.
  [[nodiscard]] static Result<ArenaView> open(const MemoryOffer& offer);
  ArenaView(ArenaView&& other) noexcept;
  ArenaView& operator=(ArenaView&&) = delete;
  ~ArenaView();

  // nullptr where the arena has no such place.
  [[nodiscard]] std::byte* at(std::size_t offset, std::size_t bytes) const noexcept;

 private:
  ArenaView(std::byte* begin, std::size_t size) : begin_(begin), size_(size) {}

  std::byte* begin_;
  std::size_t size_;
};

}  // namespace accel::shm
