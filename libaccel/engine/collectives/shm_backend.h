// ShmBackend: the collectives of one node as a c10d backend, so that c10d::Reducer and users' own calls take them.
//
// A collective does its work on the caller's thread and comes back when this rank's part is done: the Work that it returns
// is completed. Only the Work of a message may be waited for; until then the message moves whenever this rank waits in the
// group, and not meanwhile. A hand-over to another thread costs more than a small collective, and ranks that compute on all cores
// have nothing to overlap one with that moves memory. What goes over a network is worth it: see set_overlaps().
// Collectives of several groups must be called in the same order by the ranks that share them.
//
// Tensors are on the CPU, and dense but for all-reduce, which sums sparse ones too. Collectives that only move data take
// every type; reductions take those of shm::DataType. Tensors that are not
// contiguous are copied.
//
// The same adapter serves ranks of several nodes, when the group is a TwoLevelGroup (engine/collectives/two_level_group.h).
//
// Threads:  one thread at a time, except abort() and shutdown().
// Errors    accel::Error, thrown: those of ByteGroup; kUnsupported: a type, an operation or a device; kShapeMismatch: lists
//           of tensors that do not fit together.
// Source:   torch/csrc/distributed/c10d/Backend.hpp of LibTorch 2.11.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "libaccel/engine/shm/group/byte_group.h"

namespace accel {

class QueuedGroup;

class ShmBackend final : public c10d::Backend {
 public:
  using Tensors = std::vector<at::Tensor>;
  using WorkPtr = c10::intrusive_ptr<c10d::Work>;

  // timeout: that of a monitored barrier which names none.
  explicit ShmBackend(std::shared_ptr<shm::ByteGroup> group,
                      std::string name = "accel_shm",
                      std::chrono::milliseconds timeout = kBackendDefaultTimeout);

  const std::string getBackendName() const override { return name_; }

  WorkPtr broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) override;
  WorkPtr allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) override;
  // Of tensors in coordinates (COO), sums and averages; each rank may bring other coordinates.
  WorkPtr allreduce_sparse(Tensors& tensors, const c10d::AllreduceOptions& options) override;
  WorkPtr allreduce_coalesced(Tensors& tensors,
                              const c10d::AllreduceCoalescedOptions& options) override;
  WorkPtr reduce(Tensors& tensors, const c10d::ReduceOptions& options) override;
  WorkPtr allgather(std::vector<Tensors>& outputs,
                    Tensors& inputs,
                    const c10d::AllgatherOptions& options) override;
  WorkPtr _allgather_base(at::Tensor& output,
                          at::Tensor& input,
                          const c10d::AllgatherOptions& options) override;
  WorkPtr allgather_coalesced(std::vector<Tensors>& outputs,
                              Tensors& inputs,
                              const c10d::AllgatherOptions& options) override;
  WorkPtr allgather_into_tensor_coalesced(Tensors& outputs,
                                          Tensors& inputs,
                                          const c10d::AllgatherOptions& options) override;
  WorkPtr gather(std::vector<Tensors>& outputs,
                 Tensors& inputs,
                 const c10d::GatherOptions& options) override;
  WorkPtr scatter(Tensors& outputs,
                  std::vector<Tensors>& inputs,
                  const c10d::ScatterOptions& options) override;
  WorkPtr reduce_scatter(Tensors& outputs,
                         std::vector<Tensors>& inputs,
                         const c10d::ReduceScatterOptions& options) override;
  WorkPtr _reduce_scatter_base(at::Tensor& output,
                               at::Tensor& input,
                               const c10d::ReduceScatterOptions& options) override;
  WorkPtr reduce_scatter_tensor_coalesced(Tensors& outputs,
                                          Tensors& inputs,
                                          const c10d::ReduceScatterOptions& options) override;
  // No splits: pieces of the same size; else so many rows for each rank.
  WorkPtr alltoall_base(at::Tensor& output,
                        at::Tensor& input,
                        std::vector<std::int64_t>& output_splits,
                        std::vector<std::int64_t>& input_splits,
                        const c10d::AllToAllOptions& options) override;
  WorkPtr alltoall(Tensors& outputs,
                   Tensors& inputs,
                   const c10d::AllToAllOptions& options) override;
  // Messages of one sender with the same tag arrive in order. Memory that is not contiguous is copied at the end.
  WorkPtr send(Tensors& tensors, int to, int tag) override;
  WorkPtr recv(Tensors& tensors, int from, int tag) override;
  // Work::sourceRank() says who it was.
  WorkPtr recvAnysource(Tensors& tensors, int tag) override;

  WorkPtr barrier(const c10d::BarrierOptions& options) override;
  // The error, on every rank, names all that have not come; so does it when wait_all_ranks is not set, but then the first
  // known death ends it at once. kInvalidArgument: a timeout below 1 ms.
  void monitoredBarrier(const c10d::BarrierOptions& options, bool wait_all_ranks) override;

  // Memory whose all-reduces need no copy, when that of all ranks is of this kind: what c10d::Reducer asks for its buckets.
  // Ordinary memory where no more of it can be had.
  bool supportsTensorAlloc(c10::DeviceIndex device) override;
  at::Tensor allocateTensor(long size, at::TensorOptions options) override;

  // While it is on, all-reduces of dense tensors go on in the thread of a QueuedGroup, and the Work that comes back is waited for;
  // their tensors are left alone until then. Off at first; of another group nothing changes. Returns what it was.
  bool set_overlaps(bool overlaps) noexcept { return std::exchange(overlaps_, overlaps); }

  void setSequenceNumberForGroup() override {}
  std::uint64_t getSequenceNumberForGroup() override { return sequence_; }

  // Ends what waits in another thread with an error, on all ranks.
  void abort() override { group_->abort(); }
  void shutdown() override { group_->abort(); }

 private:
  WorkPtr done(c10d::OpType type, Tensors results);
  WorkPtr begin_allreduce(const Tensors& tensors, const c10d::ReduceOp& op);
  // What rank `root` brings; `own` is as large, with other entries.
  [[nodiscard]] at::Tensor sparse_of(int root, const at::Tensor& own);
  void all_gather_pieces(const at::Tensor& input, const Tensors& outputs);
  void reduce_scatter_pieces(const Tensors& inputs, at::Tensor& output, const c10d::ReduceOp& op);
  WorkPtr receive(Tensors& tensors, int from, int tag);
  void all_to_all_pieces(const Tensors& inputs, const Tensors& outputs);
  // Of a tensor whose memory is contiguous: the rows of each rank.
  [[nodiscard]] Tensors pieces_of(const at::Tensor& whole,
                                  const std::vector<std::int64_t>& splits) const;
  [[nodiscard]] Tensors even_pieces(const at::Tensor& whole, std::int64_t elements_each) const;

  std::shared_ptr<shm::ByteGroup> group_;  // also the works' of messages
  std::string name_;
  std::chrono::milliseconds timeout_;
  std::shared_ptr<QueuedGroup> queue_;  // the group, or nullptr
  bool overlaps_ = false;
  std::uint64_t sequence_ = 0;
};

}  // namespace accel
