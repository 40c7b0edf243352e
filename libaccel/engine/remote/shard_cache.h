// ShardCache: the shards of other nodes that this node holds copies of at present, shared by the ranks of the node.
//
//   memory:  | control | unit 0: shard of rank 0 | ... | shard of rank n-1 | pad | unit 1: ... |
//
// Shards of the node's own ranks are always there. The others come when a rank acquires the unit, each fetched once a
// node by whichever rank gets to it first, a rank's part of them at once; their pages go back when the last rank has
// released the unit.
//
//   word of a unit    | acquire()            | release()
//   n readers         | n + 1                | n - 1; the last one -> clearing
//   clearing by rank  | waits                | - (who clears gives the pages back, then 0)
//
//   state of a shard  | acquire()
//   absent            | -> fetched by this rank -> present; absent again, and the error thrown, when that fails
//   fetched by a rank | waits for it, as long as that rank lives
//   present           | goes on
//
// All bytes zero is a cache of which nothing is there.
//
// Threads:  any; calls for one unit by one thread of a process at a time.
// Cost:     of acquire(): the bytes of absent shards by Fetch, an atomic addition when all are present. Memory: the
//           shards of other nodes of acquired units, in whole pages.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include <sys/types.h>

#include <accel/result.h>

#include "libaccel/engine/remote/wanted_shard.h"
#include "libaccel/engine/shm/memory/peer_watch.h"
#include "runtime/unique_fd.h"

namespace accel::sharding {

struct CacheShape {
  int world_size = 1;
  int rank = 0;
  std::vector<int> node_ranks;           // of this node, ascending, this rank among them
  std::vector<std::size_t> shard_bytes;  // of one rank, by unit
};

class ShardCache {
 public:
  // Fills each `into` with the shard of the unit that its rank, of another node, owns, and calls arrived(place in
  // `wanted`) after each, in any order. May throw: what has not arrived then is absent again. `wanted` ascends by rank.
  using Fetch = std::function<void(std::size_t unit,
                                   std::span<const WantedShard> wanted,
                                   const std::function<void(std::size_t)>& arrived)>;

  // What the memory of a node must have: all of it zero at first.
  [[nodiscard]] static std::size_t memory_bytes(const CacheShape& shape);

  // Maps the memory and reserves this rank's own shards. peers: in the order of node_ranks; outlives the cache.
  // Errors  kOutOfMemory.
  [[nodiscard]] static Result<std::unique_ptr<ShardCache>> open(CacheShape shape,
                                                                UniqueFd memory,
                                                                shm::PeerWatch& peers,
                                                                Fetch fetch);
  ~ShardCache();
  ShardCache(const ShardCache&) = delete;
  ShardCache& operator=(const ShardCache&) = delete;

  // Returns when all shards of the unit are there; they stay until release(). Throws kPeerLost naming a rank of this
  // node that ended while it fetched; kOutOfMemory; what Fetch throws. After an error nothing is acquired.
  void acquire(std::size_t unit);
  void release(std::size_t unit) noexcept;

  // To be read while the unit is acquired, or when the rank is of this node; to be written by the rank itself.
  [[nodiscard]] std::span<std::byte> shard(std::size_t unit, int rank) const noexcept;
  // All shards of the unit, in whole pages.
  [[nodiscard]] std::span<std::byte> unit(std::size_t unit) const noexcept;
  // Where unit() begins in memory().
  [[nodiscard]] off_t offset_of(std::size_t unit) const noexcept;
  [[nodiscard]] int memory() const noexcept { return memory_.get(); }
  // By this rank, since construction.
  [[nodiscard]] std::uint64_t num_fetches() const noexcept { return num_fetches_; }

 private:
  struct UnitWord;
  struct ShardState;

  ShardCache(CacheShape shape, UniqueFd memory, shm::PeerWatch& peers, Fetch fetch);
  [[nodiscard]] UnitWord& word(std::size_t unit) const noexcept;
  [[nodiscard]] ShardState& state(std::size_t unit, int rank) const noexcept;
  [[nodiscard]] bool is_of_this_node(int rank) const noexcept;
  void count_in(std::size_t unit);
  [[nodiscard]] int fetch_absent(std::size_t unit);
  void fetch(std::size_t unit, std::vector<int> ranks);
  void reserve(std::span<const std::byte> shard);
  void set_state(std::size_t unit, int rank, std::uint32_t value);
  void clear(std::size_t unit) noexcept;
  void wait_for(std::size_t unit, std::uint32_t rings, int rank);

  CacheShape shape_;
  UniqueFd memory_;
  shm::PeerWatch& peers_;
  std::mutex peers_mutex_;
  Fetch fetch_;
  std::vector<std::size_t> offsets_;  // of units in the memory
  std::vector<int> foreign_ranks_;    // in the order in which this rank looks for work
  std::byte* begin_ = nullptr;
  std::size_t bytes_ = 0;
  std::atomic<std::uint64_t> num_fetches_ = 0;
};

}  // namespace accel::sharding
