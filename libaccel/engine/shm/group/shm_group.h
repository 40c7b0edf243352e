// ShmGroup: the collectives between the ranks of one node, through memory that they share.
//
// Every collective is a number of steps, the same on all ranks. In step t a rank writes into its slot t mod 2, publishes
// t, waits until those whose data it needs have published t, and reads their slots:
//
//   write slot t mod 2 --> publish t --> wait for t of the others --> read their slots --> step t + 1
//
// A slot is written again two steps later. By then every rank has published the step between, which it does only after
// it has read: so a rank waits for all others' t - 1 before it writes for t, and in most collectives it has done so
// already. There is no other lock, and one hand-over a step.
//
// What a rank has for itself is taken from where it is. What all ranks have in memory that the others can map (arena.h) is
// reduced where it lies: each rank reads a slice of all and writes the result to all, between two steps. Where the kernel lets
// two ranks read and write each other's memory, much data goes straight from one to the other (shm_straight.cc).
//
//   collective      step
//   all_reduce      slot: input. All reduce all slots, in rank order
//    > 2 ranks      two steps: all reduce their own slice; slot: that slice
//    of pieces      slot: where they lie; a step more (shm_pieces.cc). reduce_scatter likewise
//   reduce          slot: input. The root reduces all slots
//   reduce_scatter  slot: a piece for each rank. Each reduces its own
//   broadcast       slot: the root's data
//   all_gather      slot: input, read by all; gather: by the root
//   scatter         slot: the root's pieces
//   all_to_all      slot: first the sizes of all pieces, then a piece for each rank
//   barrier         slot: nothing; monitored: two steps, so that none passes while another one gives up
//
// Messages between two ranks have rings of their own and belong to no step (point_to_point.h).
//
// The order of a reduction is that of the ranks (reduction.h): the same bits on all ranks, and in every run.
//
// In the first step of a collective every rank waits for all others and compares what they call: the collective, its root,
// size, type and operation. Where they differ all ranks get an error that names two calls. A rank that dies, leaves or breaks
// in a collective is an error on all others within a second, which names it, whomever they wait for; of several causes a
// death is named first. After an error the group cannot be used.
//
// Threads:  one thread at a time, except abort().
// Cost:     4 KB between 2 ranks: some microseconds; asleep after some thousand looks at a rank that is late.
// Source:   docs/reference/numerics.md for what is equal to what.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <accel/result.h>

#include "libaccel/engine/shm/group/byte_group.h"
#include "libaccel/engine/shm/group/point_to_point.h"
#include "libaccel/engine/shm/memory/arena.h"
#include "libaccel/engine/shm/memory/buffer_location.h"
#include "libaccel/engine/shm/memory/group_memory.h"
#include "libaccel/engine/shm/memory/peer_watch.h"
#include "libaccel/engine/shm/numbers/data_type.h"

namespace accel::shm {

// How long a death may go unseen, at most; a death costs its parent longer than this to tell anybody.
inline constexpr std::chrono::milliseconds kLookEvery{100};
// How often a rank that waits moves transfers which it has for others.
inline constexpr std::chrono::milliseconds kLookWithLetters{1};

struct GroupOptions {
  int rank = 0;
  GroupShape shape;
  std::chrono::milliseconds join_timeout{60'000};
  std::chrono::milliseconds timeout{1'800'000};  // of one wait for one rank, as in c10d
  // Looks at a rank that is late before falling asleep. 0: many where this rank has a core of its own beside the others
  // (core_set.h), few where it has not.
  int spins = 0;
  std::size_t most_aside = std::size_t{256} << 20;  // see PointToPoint
  // From how many bytes on two ranks copy straight out of each other's memory (shm_straight.cc); the same on both.
  std::size_t straight_bytes = std::size_t{128} << 10;
  // Of all ranks, where they are known: one that dies before it joins is noticed.
  std::vector<ProcessWatch::Process> processes = {};
  std::vector<int> names = {};  // what errors call the ranks; empty: by their numbers
};

class ShmGroup final : public ByteGroup {
 public:
  // Comes back once all ranks have joined. `memory` is theirs all. Errors  those of GroupMemory::map(); kPeerLost: names
  // the ranks that have not joined; kInvalidArgument: a rank has joined with another shape, or twice.
  [[nodiscard]] static Result<std::unique_ptr<ShmGroup>> join(GroupMemory memory,
                                                              GroupOptions options);
  [[nodiscard]] static Result<std::unique_ptr<ShmGroup>> join(const UniqueFd& memory,
                                                              GroupOptions options);
  ~ShmGroup() override;

  [[nodiscard]] int rank() const noexcept override { return options_.rank; }
  [[nodiscard]] int world_size() const noexcept override { return options_.shape.world_size; }

  [[nodiscard]] Result<void> barrier() override;
  [[nodiscard]] Result<void> monitored_barrier(std::chrono::milliseconds timeout,
                                               RollCall roll_call) override;

  // What all ranks have in such memory all_reduce(), all_reduce_pieces() and reduce_scatter_pieces() reduce without a copy.
  [[nodiscard]] Result<std::shared_ptr<std::byte>> allocate(std::size_t bytes) override;

  [[nodiscard]] std::atomic<std::uint64_t>* stop_word() noexcept override {
    return &memory_.stop_word();
  }

  [[nodiscard]] Result<void> all_reduce(
      const std::byte* in, std::byte* out, std::size_t count, DataType type, ReduceOp op) override;
  [[nodiscard]] Result<void> reduce(const std::byte* in,
                                    std::byte* out,
                                    std::size_t count,
                                    DataType type,
                                    ReduceOp op,
                                    int root) override;
  [[nodiscard]] Result<void> reduce_scatter(std::span<const std::byte* const> in,
                                            std::byte* out,
                                            std::size_t count,
                                            DataType type,
                                            ReduceOp op) override;
  [[nodiscard]] Result<bool> all_reduce_pieces(std::span<const Piece> pieces,
                                               DataType type,
                                               double factor) override;
  [[nodiscard]] Result<bool> reduce_scatter_pieces(std::span<const Piece> pieces,
                                                   std::byte* out,
                                                   std::size_t count,
                                                   DataType type,
                                                   double factor) override;
  [[nodiscard]] Result<void> broadcast(std::byte* data,
                                       std::size_t bytes,
                                       int root,
                                       std::string_view elements = {}) override;
  [[nodiscard]] Result<void> all_gather(const std::byte* in,
                                        std::span<std::byte* const> out,
                                        std::size_t bytes,
                                        std::string_view elements = {}) override;
  [[nodiscard]] Result<void> gather(const std::byte* in,
                                    std::span<std::byte* const> out,
                                    std::size_t bytes,
                                    int root,
                                    std::string_view elements = {}) override;
  [[nodiscard]] Result<void> scatter(std::span<const std::byte* const> in,
                                     std::byte* out,
                                     std::size_t bytes,
                                     int root,
                                     std::string_view elements = {}) override;
  [[nodiscard]] Result<void> all_to_all(std::span<const std::span<const std::byte>> in,
                                        std::span<const std::span<std::byte>> out,
                                        std::string_view elements = {}) override;
  [[nodiscard]] Result<void> post(const TransferPtr& transfer) override;
  [[nodiscard]] Result<bool> is_done(const TransferPtr& transfer) override;
  [[nodiscard]] Result<void> wait(const TransferPtr& transfer) override;
  void abort() noexcept override;

 private:
  ShmGroup(GroupMemory memory, GroupOptions options);

  // Why nothing more comes from a rank; the worst cause first.
  struct Loss {
    int rank = 0;
    enum How { kAborted, kDied, kBroken, kLeft } how = kDied;
  };

  [[nodiscard]] Result<void> wait_for_all_to_join();
  void choose_spins();
  [[nodiscard]] Result<void> check_usable();

  // The steps of a collective: step(done, bytes) for each `most` bytes of `all`, one when there are none. After the first
  // one all ranks know that they call the same.
  template <typename Step>
  [[nodiscard]] Result<void> run_steps(std::size_t all, std::size_t most, Step step);
  [[nodiscard]] Result<void> check_all_calls();
  void end_collective() noexcept;

  // One step: our slot, when it may be written; what we do, told to all; another's slot, when it may be read.
  [[nodiscard]] Result<std::byte*> begin_step();
  void publish_step(const Call& call);
  [[nodiscard]] Result<const std::byte*> slot_of(int rank);
  [[nodiscard]] Result<void> wait_for_phase(int rank, std::uint32_t phase);
  [[nodiscard]] std::size_t piece_bytes() const noexcept;
  // A step whose slot holds these bytes.
  [[nodiscard]] Result<void> publish_bytes(const std::byte* in,
                                           std::size_t bytes,
                                           const Call& call);
  // A step whose slot holds `bytes` from `done` on of each of `in`, a piece for each rank but this.
  [[nodiscard]] Result<void> publish_pieces(std::span<const std::byte* const> in,
                                            std::size_t done,
                                            std::size_t bytes,
                                            const Call& call);

  // What all have published in this step; the calls are compared too.
  [[nodiscard]] Result<std::vector<BufferLocation>> locations_of_all();
  // A step without data: place_ of all.
  [[nodiscard]] Result<std::vector<BufferLocation>> meet(const Call& call);

  // Of monitored_barrier(): until all have published the phase, or it is in vain.
  struct Muster;
  [[nodiscard]] Result<void> await_all(std::uint32_t phase, const Muster& muster);
  [[nodiscard]] bool is_in_vain(std::uint32_t phase, RollCall roll_call);
  // Who has not published it now.
  [[nodiscard]] std::vector<Absent> absent_before(std::uint32_t phase);

  // Where the data of this rank lies, for the others, when it is reduced in place.
  [[nodiscard]] BufferLocation location_of(const std::byte* in,
                                           const std::byte* out,
                                           std::size_t bytes) const;
  // Maps the arenas of all others, the first time; a step more, in which they agree whether all of them could.
  [[nodiscard]] Result<bool> open_arenas(const Call& call);
  // Each rank reduces a slice of what all have at these locations, and writes it to all of them; a step more.
  [[nodiscard]] Result<void> reduce_in_place(std::span<const BufferLocation> published,
                                             std::byte* own,
                                             std::size_t bytes,
                                             const Call& call,
                                             DataType type,
                                             ReduceOp op);
  [[nodiscard]] Result<void> reduce_straight(std::span<const BufferLocation> locations,
                                             std::byte* own,
                                             std::size_t bytes,
                                             const Call& call,
                                             DataType type,
                                             ReduceOp op);
  // The slices of both: even parts, of whole cache lines.
  [[nodiscard]] std::size_t begin_of_lines(std::size_t bytes, int rank) const noexcept;
  // An all-reduce whose locations are published: done, or the way on through the slots. The same on all ranks.
  [[nodiscard]] Result<ReductionPath> reduce_where_it_lies(
      std::byte* own, std::size_t bytes, const Call& call, DataType type, ReduceOp op);

  // Sums of pieces in the arenas of all ranks (shm_pieces.cc).
  struct PieceTable;
  [[nodiscard]] Result<bool> meet_pieces(std::span<const Piece> pieces,
                                         const Call& call,
                                         DataType type,
                                         PieceTable& table);
  [[nodiscard]] Result<void> publish_pieces_of_arena(std::span<const Piece> pieces,
                                                     const Call& call,
                                                     DataType type);
  [[nodiscard]] Result<void> read_locations(std::size_t num_pieces, PieceTable& table);
  // sum_block(position, bytes, locations by rank) for each block of this rank's part of them, which part(bytes of all) gives.
  template <typename Part, typename SumBlock>
  [[nodiscard]] Result<bool> sum_pieces(
      std::span<const Piece> pieces, DataType type, CallKind kind, Part part, SumBlock sum_block);

  // Straight copies between two ranks (shm_straight.cc).
  [[nodiscard]] bool may_go_straight(std::size_t bytes) const noexcept;
  [[nodiscard]] std::size_t peer_at() const noexcept;  // the other rank, as an index
  // Whether both ranks can reach the other's memory; up to three steps more, the first time.
  [[nodiscard]] Result<bool> open_memories(const Call& call);
  [[nodiscard]] bool can_mark(std::uint64_t address) const;
  [[nodiscard]] std::uint64_t mark_of(int rank) const;  // what it writes to the other
  // The first step: locations of what both bring; none when it goes through the slots, on both ranks alike.
  [[nodiscard]] Result<std::vector<BufferLocation>> meet_straight(const std::byte* data,
                                                                  std::size_t bytes,
                                                                  const Call& call);
  // Between the steps: copy(), which returns what the two below say.
  template <typename Copy>
  [[nodiscard]] Result<void> copy_straight(Copy copy);
  [[nodiscard]] Result<void> read_straight(std::uint64_t from,
                                           std::byte* to,
                                           std::size_t bytes) const;
  [[nodiscard]] Result<void> write_straight(std::uint64_t to,
                                            const std::byte* from,
                                            std::size_t bytes) const;
  [[nodiscard]] Result<void> settled_copy(Result<void> done) const;
  // The second step.
  [[nodiscard]] Result<void> end_straight(const Call& call);
  // After an error: until nobody copies out of or into memory of this rank any more. A rank that is stopped in the middle of a
  // copy holds it for the timeout of the group.
  void await_copies();
  // Whether it is done; else all go on through the slots.
  [[nodiscard]] Result<bool> broadcast_straight(std::byte* data,
                                                std::size_t bytes,
                                                const Call& call,
                                                int root);

  [[nodiscard]] std::size_t begin_of_slice(std::size_t bytes,
                                           DataType type,
                                           int rank) const noexcept;
  // A step whose slot holds all but our own slice.
  [[nodiscard]] Result<void> publish_slices(const std::byte* in,
                                            std::size_t bytes,
                                            const Call& call,
                                            DataType type);
  // Each rank reduces a slice of all slots, and copies those of the others into `out`; a step more.
  [[nodiscard]] Result<void> reduce_by_slices(const std::byte* in,
                                              std::size_t bytes,
                                              const Call& call,
                                              DataType type,
                                              ReduceOp op,
                                              std::byte* out);
  // The slots of this step, `offset` bytes into each, and `own` for ours, reduced into `out`.
  [[nodiscard]] Result<void> reduce_slots(std::size_t offset,
                                          const std::byte* own,
                                          std::size_t bytes,
                                          DataType type,
                                          ReduceOp op,
                                          std::byte* out);

  // The size of the largest piece of all.
  [[nodiscard]] Result<std::uint64_t> exchange_sizes(std::span<const std::span<const std::byte>> in,
                                                     std::span<const std::span<std::byte>> out,
                                                     std::string_view elements);
  // Whether others are to be looked at now: not at every turn of a loop.
  [[nodiscard]] bool is_look_due();
  [[nodiscard]] std::optional<Loss> loss_of(int rank);
  // The worst loss among those who have not ended the collective of that step.
  [[nodiscard]] std::optional<Loss> loss_before(std::uint32_t phase);
  // What another one's end or call means for who waits for anybody in that step.
  [[nodiscard]] std::optional<Error> error_of_others(std::uint32_t phase);
  // Whether whom the transfer waits for may still move it. Of anybody: while all others live, and one has not left.
  [[nodiscard]] Result<void> check_peer_of(const Transfer& transfer);

  [[nodiscard]] int name_of(int rank) const;
  [[nodiscard]] std::string label_of(int rank) const;  // "rank 3"
  [[nodiscard]] static std::string text_of(const Loss& loss);
  [[nodiscard]] Error error_of(const Loss& loss) const;
  [[nodiscard]] Error lateness_of(int rank) const;
  [[nodiscard]] Error loss_of(int rank, const std::string& what, std::string remedy) const;
  [[nodiscard]] Error mismatch(int rank, const Call& theirs) const;
  // Nothing more comes from this rank: the others are told.
  Error broken(Error error);

  GroupMemory memory_;
  GroupOptions options_;
  PointToPoint point_to_point_;
  std::shared_ptr<Arena> arena_;                 // also its tensors'
  std::vector<std::optional<ArenaView>> views_;  // by rank; none of our own
  bool are_arenas_refused_ = false;              // the same on all ranks
  enum class Memories { kUnknown, kOpen, kRefused } memories_ = Memories::kUnknown;  // likewise
  std::uint64_t mark_of_peer_ = 0;  // written by the other of two ranks, to try whether it can
  std::unique_ptr<std::byte[]> scratch_;  // of reduce_straight()
  BufferLocation location_;               // of the next step that is published
  ProcessWatch peers_;
  std::chrono::steady_clock::time_point next_look_;
  std::uint32_t phase_ = 0;  // of the step that goes on
  Call call_;
  std::atomic<bool> is_aborted_ = false;
  bool is_broken_ = false;
};

}  // namespace accel::shm
