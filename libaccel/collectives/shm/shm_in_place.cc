// All-reduce of what lies in the arenas of all ranks.
//
//   step 1: places --> all: reduce own slice of all arenas, write it to all --> step 2 --> done
//
// Between the steps each byte of an arena is read and written by one rank alone, that of its slice; slices begin at cache
// lines. With two ranks and n bytes each rank reads n and writes n, where the way through slots copies in and out besides.
// A rank whose data lies elsewhere makes all go through the slots; so does one that cannot map an arena, and then for
// good.

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "libaccel/collectives/shm/reduction.h"
#include "libaccel/collectives/shm/shm_group.h"

namespace accel::shm {
namespace {

// Read, reduced and written to all ranks while it stays in the first caches.
constexpr std::size_t kBlockBytes = 32 * 1024;

}  // namespace

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

Place ShmGroup::place_of(const std::byte* in, const std::byte* out, std::size_t bytes) const {
  if (are_arenas_refused_ || !arena_ || in != out || !arena_->contains(in, bytes)) return {};
  return {.where = Place::kInArena, .offset = arena_->offset_of(in)};
}

Result<ShmGroup::Share> ShmGroup::share_of(std::uint32_t where, std::vector<Place>* places) {
  int num_shared = 0;
  for (int rank = 0; rank < world_size(); ++rank) {
    const auto slot = slot_of(rank);
    if (!slot) return slot.error();
    const Place place = memory_.place(rank, phase_ & 1U);
    if (place.where == where) ++num_shared;
    if (places != nullptr) places->push_back(place);
  }
  if (num_shared == 0) return Share::kNone;
  return num_shared == world_size() ? Share::kAll : Share::kSome;
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
  if (auto begun = begin_step(); !begun) return std::move(begun).error();
  place_.where = have_all ? Place::kInArena : Place::kRefused;
  publish_step(call);
  const auto refused = share_of(Place::kRefused);
  if (!refused) return refused.error();
  are_arenas_refused_ = *refused != Share::kNone;
  return !are_arenas_refused_;
}

Result<void> ShmGroup::reduce_in_place(std::span<const Place> published,
                                       std::byte* own,
                                       std::size_t bytes,
                                       const Call& call,
                                       DataType type,
                                       ReduceOp op) {
  std::array<std::byte*, kMaxRanks> places;
  for (int rank = 0; rank < world_size(); ++rank) {
    const auto at = static_cast<std::size_t>(rank);
    const std::size_t offset = published[at].offset;
    places[at] = rank == this->rank() ? own : views_[at]->at(offset, bytes);
    if (places[at] != nullptr) continue;
    return broken(Error(
        ErrorCode::kInternal,
        "rank " + std::to_string(rank) + " has nothing at its place " + std::to_string(offset)));
  }
  const auto size = static_cast<std::size_t>(world_size());
  const std::size_t num_lines = (bytes + kCacheLine - 1) / kCacheLine;
  const auto begin_of = [&](std::size_t rank) {
    return std::min(bytes, num_lines * rank / size * kCacheLine);
  };
  const auto rank_at = static_cast<std::size_t>(rank());
  const std::size_t end = begin_of(rank_at + 1);
  for (std::size_t begin = begin_of(rank_at); begin < end; begin += kBlockBytes) {
    const std::size_t block = std::min(kBlockBytes, end - begin);
    std::array<const std::byte*, kMaxRanks> operands;
    for (std::size_t rank = 0; rank < size; ++rank) operands[rank] = places[rank] + begin;
    reduce_elements({operands.data(), size}, block / shm::size_of(type), type, op, own + begin);
    for (std::size_t rank = 0; rank < size; ++rank) {
      if (rank != rank_at) std::memcpy(places[rank] + begin, own + begin, block);
    }
  }
  if (auto next = begin_step(); !next) return std::move(next).error();
  publish_step(call);
  return check_all_calls();
}

Result<ShmGroup::Way> ShmGroup::way_of(
    std::byte* own, std::size_t bytes, const Call& call, DataType type, ReduceOp op) {
  if (are_arenas_refused_) return Way::kSlots;
  std::vector<Place> places;
  const auto share = share_of(Place::kInArena, &places);
  if (!share) return share.error();
  if (*share == Share::kNone) return Way::kSlots;
  if (*share == Share::kSome) return Way::kAnew;
  const auto opened = open_arenas(call);
  if (!opened) return opened.error();
  if (!*opened) return Way::kAnew;
  auto reduced = reduce_in_place(places, own, bytes, call, type, op);
  if (!reduced) return std::move(reduced).error();
  return Way::kDone;
}

}  // namespace accel::shm
