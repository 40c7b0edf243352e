// MemoryCheckpoints: checkpoints of a running job in its supervisors' memory, and which of them can be loaded.
//
//   save   1  all ranks say how much they have, and which piece of memory they would write to; a node whose memory is too
//             small takes more, and one whose ranks do not all know its newest piece maps that
//          2  each rank copies its part into the slot that does not hold the newest one that all ranks have
//          3  all ranks say that they have: from here on it is the newest
//
// A rank that dies before 3 is over on all leaves the one before, which nobody has touched.
//
// Threads:  the thread that trains; every rank makes the same calls.
// Cost:     two copies of what the ranks of a node have: what is divided, each rank its part; what is the same on all
//           ranks, the first of the node, or each its share (replica_shares.h).
// Source:   docs/guides/memory_checkpoints.md.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <accel/checkpoint.h>

#include "libaccel/engine/checkpoint/memory/memory_choice.h"
#include "libaccel/engine/checkpoint/memory/memory_slot.h"
#include "libaccel/engine/checkpoint/memory/node_memory.h"
#include "libaccel/engine/checkpoint/ranks/rank_exchange.h"

namespace accel::checkpoint {

struct MemorySaveOptions {
  std::int64_t step = 0;
  std::int64_t generation = 0;
  // What the run goes by to tell which is newer when there is a checkpoint on disk too; kept with it.
  DiskMark newest_on_disk = {};
};

class MemoryCheckpoints {
 public:
  struct Hooks {
    std::function<void(const std::string& text)>
        on_size;  // on the first rank of a node that takes memory
    CopyProgress on_copy;
  };

  explicit MemoryCheckpoints(MemoryKeeper& keeper, Hooks hooks = {})
      : memory_(keeper), hooks_(std::move(hooks)) {}

  // Takes memory for what save() would copy now and `more_bytes` of this rank, so that a machine that has too little says so
  // before training. Errors  as save().
  void reserve(RankExchange& ranks, const CheckpointObjects& objects, std::uint64_t more_bytes);

  // Errors  throws on all ranks, and the checkpoints before stay: kOutOfMemory, with the bytes; kUnsupported for hooks (what
  // they write is in files), and what cannot be saved; kPeerLost.
  CheckpointInfo save(RankExchange& ranks,
                      const CheckpointObjects& objects,
                      const MemorySaveOptions& options);

  // Whether this job has begun before, in another generation, on any of the nodes that take part now. `generation`: of now,
  // above 0. Errors  throws as save().
  [[nodiscard]] bool has_begun_before(RankExchange& ranks, std::uint64_t generation);

  // The newest that all ranks have. Each rank hashes its part of that one, and of an older one when it is damaged somewhere.
  struct Found {
    MemoryChoice choice;
    DiskMark newest_on_disk;  // as it was saved
  };
  [[nodiscard]] Found find(RankExchange& ranks);

  // Loads the newest that all ranks have. std::nullopt: there is none, or it does not fit the objects; `why_not` says so, on
  // all ranks alike, and nothing has changed. Errors  throws kPeerLost, and what an object says that refuses its state.
  std::optional<LoadReport> load(RankExchange& ranks,
                                 const CheckpointObjects& objects,
                                 std::string& why_not);

 private:
  // What a rank says before it saves.
  struct Wish {
    int first = 0;            // rank of its node
    std::uint64_t bytes = 0;  // of its content
    std::uint64_t piece = 0;  // the newest that it knows
    bool fits = false;        // in there
    std::int64_t highest = 0;
    std::vector<CgroupRoom> rooms;
  };
  [[nodiscard]] static std::string encode(const Wish& wish);
  [[nodiscard]] static Wish decode_wish(const std::string& text);
  // Whether all ranks of a node can write to one piece as it is.
  [[nodiscard]] static bool has_room(const std::vector<Wish>& wishes, int first);

  // The content of a rank of this node, of the checkpoint that `stamp`, any rank's, is of. Errors  kCheckpointIncomplete.
  [[nodiscard]] FilledSlot slot_of(int rank, const MemoryStamp& stamp) const;
  // Contents of this node's ranks but two, of the checkpoint that `stamp`, a rank's, is of.
  [[nodiscard]] std::vector<std::span<const std::byte>> contents_but(
      int one, int other, const MemoryStamp& stamp) const;
  [[nodiscard]] bool check(RankExchange& ranks,
                           const MemoryStamp& stamp,
                           std::vector<std::vector<MemoryStamp>>& by_rank,
                           DiskMark& newest_on_disk) const;
  // Takes memory where there is too little; bytes() runs first, and fails on all ranks when it fails on one. Returns the
  // serial of the next save.
  std::int64_t make_room(RankExchange& ranks, const std::function<std::uint64_t()>& bytes);
  void take(RankExchange& ranks, const std::vector<Wish>& wishes);

  void open();

  NodeMemory memory_;
  Hooks hooks_;
  bool is_open_ = false;
  bool is_searched_ = false;           // find() has set what follows
  std::int64_t highest_ = 0;           // serial that this rank knows of
  std::optional<MemoryStamp> agreed_;  // any rank's, of the newest that all ranks have
  std::optional<Found> found_;         // by find(), as long as nothing was saved since
};

}  // namespace accel::checkpoint
