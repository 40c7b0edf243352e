// GradientRoom: has autograd put gradients into memory that the ranks of a node share, so that they are summed where they
// are computed and nobody copies them into a bucket first.
//
// It has a block for each gradient that it is made for. While it lives, what a node of a backward allocates that is as large as
// one of its blocks gets a free one: that is a gradient, or something that comes and goes before one. Which block a gradient
// gets changes from step to step, and one that finds none free is in ordinary memory: who reduces gradients looks where each
// one is, and copies it (taken()). A block belongs to its tensor, also after this object's end, and is free again
// when that ends.
//
// It stands before the allocator of LibTorch for the CPU (interception/cpu_allocator.h), for good.
//
// Threads:  the thread that trains, and that of its backward; the allocator: any. It is put there by the first create().
// Cost:     a look at a table for each allocation of kSmallest bytes or more in a backward, 50 ns; the memory of the blocks, from
//           the beginning, and of one more for each gradient that somebody keeps, until the end of this object.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include "libaccel/tensors/parameter_list.h"

namespace accel {

class ProcessGroup;

class GradientRoom {
 public:
  // In bytes. Backward puts no smaller gradients here: they are cheaper copied than sought.
  static constexpr std::size_t kSmallest = 4096;

  // sizes: bytes of gradients, as often as there are such. nullptr, on all ranks alike: the ranks are not all on this node, or
  // one of them can get no such memory, or may not (may_share_gradients()); or there are no sizes. Requires: every rank calls
  // it with the same sizes. Throws what ProcessGroup throws.
  [[nodiscard]] static std::unique_ptr<GradientRoom> create(std::shared_ptr<ProcessGroup> group,
                                                            std::span<const std::size_t> sizes);
  ~GradientRoom();
  GradientRoom(const GradientRoom&) = delete;
  GradientRoom& operator=(const GradientRoom&) = delete;

  // After an error in a collective on its blocks: other ranks may still write there, so nobody gets one any more.
  void close() noexcept;

  // A tensor without values, laid out as `like`, in a block: a new one where none of its size is free, because somebody keeps
  // gradients. Where no more memory can be had: in ordinary memory.
  [[nodiscard]] at::Tensor empty_like(const at::Tensor& like);
  // `gradient` itself where it has such a block, laid out as `like` and of its dtype, to itself; else a copy in one: zeros where
  // it is undefined. arrived: what autograd has made it of, which must not lie there too; undefined: that may.
  [[nodiscard]] at::Tensor taken(const at::Tensor& gradient,
                                 const at::Tensor& like,
                                 const at::Tensor& arrived = {});

  // Whether the tensor has a block that the same ranks can see to itself: one number after the other.
  [[nodiscard]] bool holds(const at::Tensor& tensor) const;

 private:
  explicit GradientRoom(std::shared_ptr<ProcessGroup> group) : group_(std::move(group)) {}
  [[nodiscard]] bool add(std::span<const std::size_t> sizes);

  std::shared_ptr<ProcessGroup> group_;
  std::vector<std::byte*> begins_;  // of the memory that blocks were made of
};

// Whether gradients may lie in memory of all ranks: not with DDP_DISABLE_COMM_MEM=1, as c10d::Reducer asks.
[[nodiscard]] bool may_share_gradients();

// While one lives, what its thread allocates is in ordinary memory: what is kept from one backward to the next.
class OrdinaryMemory {
 public:
  OrdinaryMemory() noexcept;
  ~OrdinaryMemory();
  OrdinaryMemory(const OrdinaryMemory&) = delete;
  OrdinaryMemory& operator=(const OrdinaryMemory&) = delete;
};

// Gives gradients that lie in the memory of another parameter's gradient a copy of their own. Autograd gives two parameters
// views of one tensor where it can (a sum of two views), and would add what comes next to both, for each of them.
void separate_gradients(const std::vector<NamedParameter>& parameters);

}  // namespace accel
