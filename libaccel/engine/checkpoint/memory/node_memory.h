// NodeMemory: the memory for in-memory checkpoints that the supervisor holds for the ranks of one node.
//
//   accel.memory.index   4 KiB: which pieces there are; two records, each {number, bytes, check}; which generation of the
//                        job was here first
//   accel.memory.<n>     one piece for all ranks of the node: a directory, then an area for each rank with two slots
//
// Named memory of the supervisor has a fixed size, cannot be listed, and is made by asking for it. So the index says what may
// be asked for. When a rank needs more than its area, the node's first rank takes another piece; the older one counts until
// a checkpoint in the newer one is complete on all ranks, and then gives its memory back.
//
// Threads:  one at a time. Ranks of a node take turns as their caller says.
// Cost:     two names of the supervisor's; a piece is 2 * sum of the ranks' bytes and 1/16 for growth.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <accel/result.h>

#include "libaccel/engine/checkpoint/memory/memory_slot.h"
#include "runtime/cgroup_memory.h"

namespace accel::checkpoint {

// Who holds the memory. A seam: tests hold it themselves.
class MemoryKeeper {
 public:
  virtual ~MemoryKeeper() = default;
  // The memory of that name, made and zero-filled when there is none. Valid as long as this object. Errors  kOutOfMemory,
  // kPeerLost, kInvalidArgument when it has another size.
  [[nodiscard]] virtual Result<std::span<std::byte>> get(const std::string& name,
                                                         std::size_t bytes) = 0;
  // What get() gave; not to be used any more. The keeper's copy stays.
  virtual void unmap(std::span<std::byte> memory) = 0;
  // Ends the keeper's copy, so that it counts no more. Who has it mapped keeps it. A keeper that does not answer keeps it too.
  virtual void drop(const std::string& name) = 0;
  // That can be used on this machine without taking anybody's.
  [[nodiscard]] virtual std::uint64_t free_bytes() const = 0;
  // What the cgroups of this process leave to it: memory counts against those of the rank that writes it first.
  [[nodiscard]] virtual std::vector<CgroupRoom> rooms() const = 0;
};

// The supervisor's memory by way of the worker channel; nullptr without a supervisor.
[[nodiscard]] std::unique_ptr<MemoryKeeper> supervisor_memory();

struct MemoryPiece {
  std::uint64_t number = 0;  // above 0
  std::uint64_t bytes = 0;
};

// What a rank wants of a piece: bytes of one slot's content.
struct AreaWish {
  int rank = 0;
  std::uint64_t bytes = 0;
  std::vector<CgroupRoom> rooms = {};  // of that rank
};

class NodeMemory {
 public:
  using Slots = std::array<std::span<std::byte>, 2>;

  explicit NodeMemory(MemoryKeeper& keeper) : keeper_(keeper) {}

  // Maps the pieces that the index names. Errors  throws as MemoryKeeper::get().
  void open();

  // Notes that ranks of this generation of the job, above 0, have begun. Whether those of another one had, here.
  [[nodiscard]] bool note_begin(std::uint64_t generation);

  // All complete slots of a rank of this node, in all pieces. Contents are not looked at.
  [[nodiscard]] std::vector<FilledSlot> filled(int rank) const;
  // That have an area in one of the pieces: those of this node, by number.
  [[nodiscard]] std::vector<int> ranks() const;
  // Of the newest piece that this rank knows; 0: none. Ranks of a node may differ after one of them failed to map a piece.
  [[nodiscard]] std::uint64_t newest_number() const noexcept;
  // The newest piece, when it has room for all of these wishes.
  [[nodiscard]] std::optional<MemoryPiece> newest_with(const std::vector<AreaWish>& wishes) const;
  // The slots of a rank in the newest piece; std::nullopt: it has none, or they hold less than `bytes`.
  [[nodiscard]] std::optional<Slots> slots(int rank, std::uint64_t bytes) const;

  // For the first rank of the node. Makes a piece with an area for each wish and notes it in the index, in the place of one
  // without the checkpoint that all ranks have, `agreed`, any rank's. Errors  throws kOutOfMemory when the machine, a cgroup
  // or the supervisor has not so much.
  [[nodiscard]] MemoryPiece take(const std::vector<AreaWish>& wishes,
                                 const std::optional<MemoryStamp>& agreed);
  // For the others: maps what the first has taken.
  void map(const MemoryPiece& piece);
  // See MemoryKeeper.
  [[nodiscard]] std::vector<CgroupRoom> rooms() const { return keeper_.rooms(); }
  // Takes the pages of a rank's slots now, so that no save waits for them. Where the kernel cannot, saves do.
  void populate(int rank) const;
  // What is not the newest piece is not needed any more. first: gives its memory back.
  enum class Member { kFirst, kOther };
  void drop_older(Member member);

  // Of a piece for these wishes, without its directory.
  [[nodiscard]] static std::uint64_t bytes_for(const std::vector<AreaWish>& wishes);

 private:
  struct Mapped {
    MemoryPiece piece;
    std::span<std::byte> memory;
  };
  [[nodiscard]] const Mapped* find(std::uint64_t number) const;
  [[nodiscard]] Result<void> try_map(const MemoryPiece& piece);
  // Where take() may note a piece.
  [[nodiscard]] std::size_t free_record(const std::optional<MemoryStamp>& agreed) const;

  MemoryKeeper& keeper_;
  std::span<std::byte> index_;
  std::vector<Mapped> pieces_;  // by number, at most two
};

}  // namespace accel::checkpoint
