// HostCopiesBackend: the collectives of tensors on a device, by copies in the memory of the host.
//
// For ranks that share a GPU, which NCCL refuses, and where there is no NCCL: a tensor is copied to the host, the backend for the
// CPU does the work, and the result is copied back. Each call ends with its result: nothing overlaps.
//
// Threads:  one at a time, as the backend below.
// Errors    those of the backend below.
// Cost:     two copies over the bus for each byte, and a wait for all work that the device has to do before.
// Source:   tests/unit/libaccel/device/device_library_test.cc.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <torch/csrc/distributed/c10d/Backend.hpp>

namespace accel {

class HostCopiesBackend final : public c10d::Backend {
 public:
  using Tensors = std::vector<at::Tensor>;
  using WorkPtr = c10::intrusive_ptr<c10d::Work>;

  // host: takes tensors of the CPU.
  explicit HostCopiesBackend(c10::intrusive_ptr<c10d::Backend> host);

  const std::string getBackendName() const override { return "accel_host_copies"; }

  WorkPtr broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) override;
  WorkPtr allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) override;
  WorkPtr allreduce_coalesced(Tensors& tensors,
                              const c10d::AllreduceCoalescedOptions& options) override;
  WorkPtr reduce(Tensors& tensors, const c10d::ReduceOptions& options) override;
  WorkPtr allgather(std::vector<Tensors>& outputs,
                    Tensors& inputs,
                    const c10d::AllgatherOptions& options) override;
  WorkPtr _allgather_base(at::Tensor& output,
                          at::Tensor& input,
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
  WorkPtr alltoall_base(at::Tensor& output,
                        at::Tensor& input,
                        std::vector<std::int64_t>& output_splits,
                        std::vector<std::int64_t>& input_splits,
                        const c10d::AllToAllOptions& options) override;
  WorkPtr alltoall(Tensors& outputs,
                   Tensors& inputs,
                   const c10d::AllToAllOptions& options) override;
  WorkPtr send(Tensors& tensors, int to, int tag) override;
  WorkPtr recv(Tensors& tensors, int from, int tag) override;
  WorkPtr barrier(const c10d::BarrierOptions& options) override;

  void setSequenceNumberForGroup() override {}
  std::uint64_t getSequenceNumberForGroup() override { return sequence_; }

  void abort() override { host_->abort(); }
  void shutdown() override { host_->shutdown(); }

 private:
  WorkPtr done(c10d::OpType type, Tensors results);

  c10::intrusive_ptr<c10d::Backend> host_;
  std::uint64_t sequence_ = 0;
};

}  // namespace accel
