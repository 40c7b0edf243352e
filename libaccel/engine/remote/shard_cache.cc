// The words and states are atomics in the shared memory; changes ring the unit's bell, on which waiters sleep. A waiter
// reads the bell before it looks, so no change is missed, and wakes now and then to see whether the rank that it waits
// for still lives.
//
// The ranks of a node begin to look for absent shards at different places, so that those which arrive together fetch
// different ones.

#include "libaccel/engine/remote/shard_cache.h"

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <string>
#include <utility>

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <accel/error.h>

#include "libaccel/engine/shm/memory/rank_line.h"
#include "runtime/page_size.h"
#include "runtime/printable.h"

namespace accel::sharding {
namespace {

constexpr std::uint32_t kClearing = std::uint32_t{1} << 31;  // | the rank that clears
constexpr std::uint32_t kAbsent = 0;
constexpr std::uint32_t kPresent = 1;
constexpr std::uint32_t kFetchedBy = 2;  // + the rank
constexpr int kNobody = -1;
constexpr int kSpins = 200;
constexpr std::chrono::milliseconds kLookEvery{100};

Error no_memory(const std::string& what, std::size_t bytes, int error) {
  return Error(
      ErrorCode::kOutOfMemory,
      std::to_string(bytes) + " bytes of parameters cannot be " + what + ": " + errno_text(error));
}

}  // namespace

struct ShardCache::UnitWord {
  std::atomic<std::uint32_t> word;
  shm::Bell bell;
};

struct ShardCache::ShardState {
  std::atomic<std::uint32_t> value;
};

std::size_t ShardCache::memory_bytes(const CacheShape& shape) {
  const auto world_size = static_cast<std::size_t>(shape.world_size);
  std::size_t bytes =
      whole_pages(shape.shard_bytes.size() * (sizeof(UnitWord) + world_size * sizeof(ShardState)));
  for (const std::size_t shard : shape.shard_bytes) bytes += whole_pages(world_size * shard);
  return bytes;
}

ShardCache::ShardCache(CacheShape shape, UniqueFd memory, shm::PeerWatch& peers, Fetch fetch)
    : shape_(std::move(shape)),
      memory_(std::move(memory)),
      peers_(peers),
      fetch_(std::move(fetch)),
      bytes_(memory_bytes(shape_)) {
  std::size_t offset = bytes_;
  for (const std::size_t shard : shape_.shard_bytes)
    offset -= whole_pages(static_cast<std::size_t>(shape_.world_size) * shard);
  for (const std::size_t shard : shape_.shard_bytes) {
    offsets_.push_back(offset);
    offset += whole_pages(static_cast<std::size_t>(shape_.world_size) * shard);
  }
  for (int rank = 0; rank < shape_.world_size; ++rank)
    if (!is_of_this_node(rank)) foreign_ranks_.push_back(rank);
  const auto place = std::find(shape_.node_ranks.begin(), shape_.node_ranks.end(), shape_.rank) -
                     shape_.node_ranks.begin();
  std::rotate(
      foreign_ranks_.begin(),
      foreign_ranks_.begin() + place * std::ssize(foreign_ranks_) / std::ssize(shape_.node_ranks),
      foreign_ranks_.end());
}

Result<std::unique_ptr<ShardCache>> ShardCache::open(CacheShape shape,
                                                     UniqueFd memory,
                                                     shm::PeerWatch& peers,
                                                     Fetch fetch) {
  std::unique_ptr<ShardCache> cache(
      new ShardCache(std::move(shape), std::move(memory), peers, std::move(fetch)));
  // The whole is more than the node may have: only what is touched counts.
  void* begin = ::mmap(nullptr,
                       cache->bytes_,
                       PROT_READ | PROT_WRITE,
                       MAP_SHARED | MAP_NORESERVE,
                       cache->memory_.get(),
                       0);
  if (begin == MAP_FAILED) return no_memory("mapped", cache->bytes_, errno);
  cache->begin_ = static_cast<std::byte*>(begin);
  const CacheShape& known = cache->shape_;
  const auto control =
      static_cast<off_t>(cache->offsets_.empty() ? cache->bytes_ : cache->offsets_[0]);
  if (control > 0 && ::fallocate(cache->memory_.get(), 0, 0, control) != 0 && errno != EOPNOTSUPP)
    return no_memory("reserved", static_cast<std::size_t>(control), errno);
  for (std::size_t unit = 0; unit < known.shard_bytes.size(); ++unit) {
    const std::size_t bytes = known.shard_bytes[unit];
    if (bytes == 0) continue;
    const auto offset =
        static_cast<off_t>(cache->offsets_[unit] + static_cast<std::size_t>(known.rank) * bytes);
    if (::fallocate(cache->memory_.get(), 0, offset, static_cast<off_t>(bytes)) != 0 &&
        errno != EOPNOTSUPP)
      return no_memory("reserved", bytes, errno);
  }
  return cache;
}

ShardCache::~ShardCache() {
  if (begin_ != nullptr) ::munmap(begin_, bytes_);
}

ShardCache::UnitWord& ShardCache::word(std::size_t unit) const noexcept {
  return reinterpret_cast<UnitWord*>(begin_)[unit];
}

ShardCache::ShardState& ShardCache::state(std::size_t unit, int rank) const noexcept {
  auto* states =
      reinterpret_cast<ShardState*>(begin_ + shape_.shard_bytes.size() * sizeof(UnitWord));
  return states[unit * static_cast<std::size_t>(shape_.world_size) +
                static_cast<std::size_t>(rank)];
}

bool ShardCache::is_of_this_node(int rank) const noexcept {
  return std::binary_search(shape_.node_ranks.begin(), shape_.node_ranks.end(), rank);
}

std::span<std::byte> ShardCache::shard(std::size_t unit, int rank) const noexcept {
  const std::size_t bytes = shape_.shard_bytes[unit];
  return {begin_ + offsets_[unit] + static_cast<std::size_t>(rank) * bytes, bytes};
}

std::span<std::byte> ShardCache::unit(std::size_t unit) const noexcept {
  return {begin_ + offsets_[unit],
          whole_pages(static_cast<std::size_t>(shape_.world_size) * shape_.shard_bytes[unit])};
}

off_t ShardCache::offset_of(std::size_t unit) const noexcept {
  return static_cast<off_t>(offsets_[unit]);
}

void ShardCache::acquire(std::size_t unit) {
  if (foreign_ranks_.empty()) return;
  count_in(unit);
  try {
    while (true) {
      const std::uint32_t rings = word(unit).bell.rings.load(std::memory_order_acquire);
      const int busy = fetch_absent(unit);
      if (busy == kNobody) return;
      wait_for(unit, rings, busy);
    }
  } catch (...) {
    release(unit);
    throw;
  }
}

void ShardCache::count_in(std::size_t unit) {
  std::atomic<std::uint32_t>& readers = word(unit).word;
  while (true) {
    const std::uint32_t rings = word(unit).bell.rings.load(std::memory_order_acquire);
    std::uint32_t value = readers.load(std::memory_order_acquire);
    if ((value & kClearing) != 0) {
      wait_for(unit, rings, static_cast<int>(value & ~kClearing));
    } else if (readers.compare_exchange_weak(value, value + 1, std::memory_order_acq_rel)) {
      return;
    }
  }
}

// Fetches what nobody fetches yet: as much at once as is this rank's when all of the node come together, so that they
// share the work, and one that comes alone still asks several owners at the same time. Returns a rank that still fetches
// a shard, or kNobody.
int ShardCache::fetch_absent(std::size_t unit) {
  const std::size_t at_once =
      (foreign_ranks_.size() + shape_.node_ranks.size() - 1) / shape_.node_ranks.size();
  int busy = kNobody;
  std::vector<int> own;
  for (const int rank : foreign_ranks_) {
    std::atomic<std::uint32_t>& shard = state(unit, rank).value;
    std::uint32_t value = shard.load(std::memory_order_acquire);
    if (value == kAbsent &&
        shard.compare_exchange_strong(value,
                                      kFetchedBy + static_cast<std::uint32_t>(shape_.rank),
                                      std::memory_order_acq_rel)) {
      own.push_back(rank);
      if (own.size() == at_once) fetch(unit, std::exchange(own, {}));
    } else if (value != kPresent) {
      busy = static_cast<int>(value - kFetchedBy);
    }
  }
  if (!own.empty()) fetch(unit, std::move(own));
  return busy;
}

// Those that this rank has set about to fetch. They are present or absent when it returns or throws.
void ShardCache::fetch(std::size_t unit, std::vector<int> ranks) {
  std::sort(ranks.begin(), ranks.end());
  std::vector<bool> is_there(ranks.size());
  try {
    std::vector<WantedShard> wanted;
    for (const int rank : ranks) {
      wanted.push_back({rank, shard(unit, rank)});
      reserve(wanted.back().into);
    }
    fetch_(unit, wanted, [&](std::size_t i) {
      is_there[i] = true;
      ++num_fetches_;
      set_state(unit, ranks[i], kPresent);
    });
  } catch (...) {
    for (std::size_t i = 0; i < ranks.size(); ++i)
      if (!is_there[i]) set_state(unit, ranks[i], kAbsent);
    throw;
  }
}

// Without it a lack of memory would end the process by SIGBUS.
void ShardCache::reserve(std::span<const std::byte> shard) {
  if (shard.empty()) return;
  const auto bytes = static_cast<off_t>(shard.size());
  if (::fallocate(memory_.get(), 0, shard.data() - begin_, bytes) != 0 && errno != EOPNOTSUPP)
    throw no_memory("reserved", shard.size(), errno);
}

void ShardCache::set_state(std::size_t unit, int rank, std::uint32_t value) {
  state(unit, rank).value.store(value, std::memory_order_release);
  shm::ring_bell(word(unit).bell);
}

void ShardCache::release(std::size_t unit) noexcept {
  if (foreign_ranks_.empty()) return;
  std::atomic<std::uint32_t>& readers = word(unit).word;
  std::uint32_t value = readers.load(std::memory_order_relaxed);
  std::uint32_t next = 0;
  do {
    next = value == 1 ? kClearing | static_cast<std::uint32_t>(shape_.rank) : value - 1;
  } while (!readers.compare_exchange_weak(value, next, std::memory_order_acq_rel));
  if (value == 1) clear(unit);
}

// Gives back the pages in which there are only shards of other nodes.
void ShardCache::clear(std::size_t unit) noexcept {
  const std::size_t bytes = shape_.shard_bytes[unit];
  int rank = 0;
  while (rank < shape_.world_size) {
    if (is_of_this_node(rank)) {
      ++rank;
      continue;
    }
    const int first = rank;
    for (; rank < shape_.world_size && !is_of_this_node(rank); ++rank)
      state(unit, rank).value.store(kAbsent, std::memory_order_relaxed);
    const std::size_t begin = whole_pages(offsets_[unit] + static_cast<std::size_t>(first) * bytes);
    const std::size_t end = offsets_[unit] + static_cast<std::size_t>(rank) * bytes;
    // The padding behind the last shard is nobody's.
    const std::size_t page_end =
        rank == shape_.world_size ? whole_pages(end) : end / page_bytes() * page_bytes();
    if (page_end <= begin) continue;
    (void)::fallocate(memory_.get(),
                      FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
                      static_cast<off_t>(begin),
                      static_cast<off_t>(page_end - begin));
  }
  UnitWord& of_unit = word(unit);
  of_unit.word.store(0, std::memory_order_release);
  shm::ring_bell(of_unit.bell);
}

// For the bell, while `rank` lives.
void ShardCache::wait_for(std::size_t unit, std::uint32_t rings, int rank) {
  UnitWord& of_unit = word(unit);
  shm::await_bell(of_unit.bell, rings, kSpins, kLookEvery);
  if (of_unit.bell.rings.load(std::memory_order_acquire) != rings) return;
  const auto place = std::lower_bound(shape_.node_ranks.begin(), shape_.node_ranks.end(), rank) -
                     shape_.node_ranks.begin();
  const std::lock_guard lock(peers_mutex_);
  if (rank == shape_.rank || peers_.is_alive(static_cast<int>(place))) return;
  throw Error(ErrorCode::kPeerLost,
              "rank " + std::to_string(rank) + " ended while it fetched parameters for its node");
}

}  // namespace accel::sharding
