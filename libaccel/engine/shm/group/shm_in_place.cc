// All-reduce of what lies in the arenas of all ranks.
//
//   step 1: locations --> all: reduce own slice of all arenas, write it to all --> step 2 --> done
//
// Between the steps each byte of an arena is read and written by one rank alone, that of its slice; slices begin at cache
// lines. With two ranks and n bytes each rank reads n and writes n, where the way through slots copies in and out besides.
// A rank whose data lies elsewhere makes all copy straight between their memories (shm_straight.cc), or through the slots; so
// does one that cannot map an arena, and then for good.

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "libaccel/engine/shm/group/shm_group.h"
#include "libaccel/engine/shm/memory/peer_memory.h"
#include "libaccel/engine/shm/numbers/reduction.h"

namespace accel::shm {
Result<std::shared_ptr<std::byte>> ShmGroup::allocate(std::size_t bytes) {
  if (!arena_) {
    auto arena = Arena::create();
    if (!arena) return std::move(arena).error();
    const auto offer = (*arena)->offer();
    if (!offer) return offer.error();
    memory_.arena(rank()) = *offer;
    arena_ = *std::move(arena);
  }
  const auto room = arena_->allocate(bytes);
  if (!room) return room.error();
  return std::shared_ptr<std::byte>(*room,
                                    [arena = arena_](std::byte* data) { arena->release(data); });
}

BufferLocation ShmGroup::location_of(const std::byte* in,
                                     const std::byte* out,
                                     std::size_t bytes) const {
  BufferLocation location;
  if (in != out) return location;
  if (!are_arenas_refused_ && arena_ && arena_->contains(in, bytes)) {
    location.where = BufferLocation::kInArena;
    location.offset = arena_->offset_of(in);
  }
  if (memories_ == Memories::kOpen && bytes >= options_.straight_bytes)
    location.address = reachable_address(in, bytes);
  return location;
}

Result<bool> ShmGroup::open_arenas(const Call& call) {
  if (!views_.empty()) return true;
  views_.resize(static_cast<std::size_t>(world_size()));
  bool have_all = true;
  for (int rank = 0; rank < world_size(); ++rank) {
    if (rank == this->rank()) continue;
    auto view = ArenaView::open(memory_.arena(rank));
    have_all = have_all && view;
    if (view) views_[static_cast<std::size_t>(rank)].emplace(*std::move(view));
  }
  location_.where = have_all ? BufferLocation::kInArena : BufferLocation::kRefused;
  const auto verdicts = meet(call);
  if (!verdicts) return verdicts.error();
  are_arenas_refused_ = is_refused(*verdicts);
  return !are_arenas_refused_;
}

Result<void> ShmGroup::reduce_in_place(std::span<const BufferLocation> published,
                                       std::byte* own,
                                       std::size_t bytes,
                                       const Call& call,
                                       DataType type,
                                       ReduceOp op) {
  std::array<std::byte*, kMaxRanks> locations;
  for (int rank = 0; rank < world_size(); ++rank) {
    const auto at = static_cast<std::size_t>(rank);
    const std::size_t offset = published[at].offset;
    locations[at] = rank == this->rank() ? own : views_[at]->at(offset, bytes);
    if (locations[at] != nullptr) continue;
    return broken(Error(
        ErrorCode::kInternal,
        "rank " + std::to_string(rank) + " has nothing at its location " + std::to_string(offset)));
  }
  const auto size = static_cast<std::size_t>(world_size());
  const auto rank_at = static_cast<std::size_t>(rank());
  const std::size_t end = begin_of_lines(bytes, rank() + 1);
  for (std::size_t begin = begin_of_lines(bytes, rank()); begin < end; begin += kReductionBlock) {
    const std::size_t block = std::min(kReductionBlock, end - begin);
    std::array<const std::byte*, kMaxRanks> operands;
    for (std::size_t rank = 0; rank < size; ++rank) operands[rank] = locations[rank] + begin;
    reduce_elements({operands.data(), size}, block / shm::size_of(type), type, op, own + begin);
    for (std::size_t rank = 0; rank < size; ++rank) {
      if (rank != rank_at) std::memcpy(locations[rank] + begin, own + begin, block);
    }
  }
  const auto met = meet(call);
  return met ? Result<void>() : Result<void>(met.error());
}

std::size_t ShmGroup::begin_of_lines(std::size_t bytes, int rank) const noexcept {
  const std::size_t num_lines = (bytes + kCacheLine - 1) / kCacheLine;
  const auto size = static_cast<std::size_t>(world_size());
  return std::min(bytes, num_lines * static_cast<std::size_t>(rank) / size * kCacheLine);
}

Result<ReductionPath> ShmGroup::reduce_where_it_lies(
    std::byte* own, std::size_t bytes, const Call& call, DataType type, ReduceOp op) {
  const auto locations = locations_of_all();
  if (!locations) return locations.error();
  ReductionPath way = reduction_path(*locations, !are_arenas_refused_);
  if (way == ReductionPath::kInArenas) {
    const auto opened = open_arenas(call);
    if (!opened) return opened.error();
    if (!*opened) way = reduction_path(*locations, false);
  }
  Result<void> reduced;
  if (way == ReductionPath::kInArenas)
    reduced = reduce_in_place(*locations, own, bytes, call, type, op);
  if (way == ReductionPath::kStraight)
    reduced = reduce_straight(*locations, own, bytes, call, type, op);
  if (!reduced) return std::move(reduced).error();
  return way;
}

}  // namespace accel::shm
