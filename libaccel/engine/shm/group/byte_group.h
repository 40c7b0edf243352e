// ByteGroup: the collectives between some ranks, of bytes and of the numbers that DataType names.
//
//   ShmGroup        the ranks of one node, through memory that they share
//   TwoLevelGroup   the ranks of several nodes (engine/collectives/two_level_group.h)
//
// Errors    of all collectives: kPeerLost: a rank has died, left or met an error, or answered nothing within the timeout;
//           kShapeMismatch: another rank calls something else; kInvalidArgument: an operation that is not defined for
//           the type, a rank that does not exist.
//           After an error a rank may wait until another copies nothing out of its memory any more (shm_straight.cc): for
//           the timeout at most, where that one is stopped meanwhile.
// Threads:  one thread at a time, except abort().
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include <accel/result.h>

#include "libaccel/engine/shm/group/point_to_point.h"
#include "libaccel/engine/shm/group/roll_call.h"
#include "libaccel/engine/shm/numbers/data_type.h"

namespace accel::shm {

// Numbers of a rank that lie one after the other.
struct Piece {
  std::byte* data = nullptr;  // nullptr: zeros
  std::size_t count = 0;      // elements
};

// Nothing for the same place, and for nothing (memcpy() takes neither).
inline void copy_bytes(std::byte* out, const std::byte* in, std::size_t bytes) {
  if (bytes > 0 && out != in) std::memcpy(out, in, bytes);
}

class ByteGroup {
 public:
  virtual ~ByteGroup() = default;
  ByteGroup() = default;
  ByteGroup(const ByteGroup&) = delete;
  ByteGroup& operator=(const ByteGroup&) = delete;

  [[nodiscard]] virtual int rank() const noexcept = 0;
  [[nodiscard]] virtual int world_size() const noexcept = 0;

  // Waits until all ranks are here.
  [[nodiscard]] virtual Result<void> barrier() = 0;

  // The same for at most `timeout`, with an error that names all ranks that have not come. All ranks pass it, or none but
  // where one dies meanwhile.
  [[nodiscard]] virtual Result<void> monitored_barrier(std::chrono::milliseconds timeout,
                                                       RollCall roll_call) = 0;

  // `count` elements of `type`; `out` may be `in`.
  [[nodiscard]] virtual Result<void> all_reduce(
      const std::byte* in, std::byte* out, std::size_t count, DataType type, ReduceOp op) = 0;

  // As all_reduce, with the result at `root` alone; `out` of the others is not used.
  [[nodiscard]] virtual Result<void> reduce(const std::byte* in,
                                            std::byte* out,
                                            std::size_t count,
                                            DataType type,
                                            ReduceOp op,
                                            int root) = 0;

  // in[r] goes to rank r, `count` elements each; `out` is what is reduced here. No overlap of `out` with `in`.
  [[nodiscard]] virtual Result<void> reduce_scatter(std::span<const std::byte* const> in,
                                                    std::byte* out,
                                                    std::size_t count,
                                                    DataType type,
                                                    ReduceOp op) = 0;

  // The sum of the pieces of all ranks, element by element, each multiplied by `factor` and rounded to its type first; in
  // place. No piece is of zeros. Returns false, and has done nothing, where a rank has a piece in memory that the others
  // cannot map: on all ranks alike. Requires: as many pieces of the same sizes and the same factor on all ranks, their memory
  // apart; is_floating(type). kShapeMismatch also when sizes differ.
  [[nodiscard]] virtual Result<bool> all_reduce_pieces(std::span<const Piece> /*pieces*/,
                                                       DataType /*type*/,
                                                       double /*factor*/) {
    return false;
  }
  // The same, of which each rank gets its part into `out`: `count` elements from rank() * count on, the pieces one after the
  // other. Requires: world_size() * count elements in all pieces; no overlap of `out` with them.
  [[nodiscard]] virtual Result<bool> reduce_scatter_pieces(std::span<const Piece> /*pieces*/,
                                                           std::byte* /*out*/,
                                                           std::size_t /*count*/,
                                                           DataType /*type*/,
                                                           double /*factor*/) {
    return false;
  }

  // `elements` below: the name of the type of what is moved, which all ranks must give alike.

  // The root's `bytes` to all.
  [[nodiscard]] virtual Result<void> broadcast(std::byte* data,
                                               std::size_t bytes,
                                               int root,
                                               std::string_view elements = {}) = 0;

  // `bytes` of each rank r into out[r]. `in` may be out[rank()].
  [[nodiscard]] virtual Result<void> all_gather(const std::byte* in,
                                                std::span<std::byte* const> out,
                                                std::size_t bytes,
                                                std::string_view elements = {}) = 0;

  // The same at `root` alone; `out` of the others is not used.
  [[nodiscard]] virtual Result<void> gather(const std::byte* in,
                                            std::span<std::byte* const> out,
                                            std::size_t bytes,
                                            int root,
                                            std::string_view elements = {}) = 0;

  // in[r] of the root goes to rank r; `in` of the others is not used.
  [[nodiscard]] virtual Result<void> scatter(std::span<const std::byte* const> in,
                                             std::byte* out,
                                             std::size_t bytes,
                                             int root,
                                             std::string_view elements = {}) = 0;

  // in[r] goes to rank r, out[r] comes from it, each of any size. No overlap of `out` with `in`. kShapeMismatch also when
  // a rank sends another size than is expected.
  [[nodiscard]] virtual Result<void> all_to_all(std::span<const std::span<const std::byte>> in,
                                                std::span<const std::span<std::byte>> out,
                                                std::string_view elements = {}) = 0;

  // Memory for tensors of this rank that the others can map; it may outlive the group. Errors  kOutOfMemory; kUnsupported:
  // the others are not all on this node.
  [[nodiscard]] virtual Result<std::shared_ptr<std::byte>> allocate(std::size_t bytes) {
    return Error(ErrorCode::kUnsupported,
                 std::to_string(bytes) + " bytes cannot be shared with ranks of other nodes");
  }

  // Where all ranks agree on the boundary to stop at (stop_word.h), for as long as the group lives; nullptr: they are not all on
  // this node.
  [[nodiscard]] virtual std::atomic<std::uint64_t>* stop_word() noexcept { return nullptr; }

  // Begins to send or receive; the transfer's memory must stay until it is done. Errors  kInvalidArgument: there is no such
  // rank, or it is this one.
  [[nodiscard]] virtual Result<void> post(const TransferPtr& transfer) = 0;
  // Whether the transfer is done, after moving what can be moved now.
  [[nodiscard]] virtual Result<bool> is_done(const TransferPtr& transfer) = 0;
  // Returns when the transfer is done.
  [[nodiscard]] virtual Result<void> wait(const TransferPtr& transfer) = 0;

  // Ends a collective that waits in another thread with an error, here and on all other ranks. Any thread.
  virtual void abort() noexcept = 0;
};

}  // namespace accel::shm
