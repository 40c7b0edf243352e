// CommunicationHook: how copies of a model exchange the gradients of a bucket, in place of an average.
//
//   accel::Accelerator accelerator({.ddp = {.comm_hook = accel::DDPCommunicationHookType::kBf16}});
//
//   accel::Accelerator accelerator(
//       {.ddp = {.comm_hook = [](accel::GradientBucket& bucket, accel::CommunicationGroup& group) {
//          group.all_reduce_(bucket.buffer.div_(group.size()));
//          return bucket.buffer;
//        }}});
//
// As `register_comm_hook` of PyTorch's DDP, with the names of HF Accelerate and of torch.distributed's default hooks. A hook is
// called once for each bucket of a backward that exchanges gradients, in the order of their indices, on all ranks alike. What
// it keeps from step to step (an error to be fed back) it keeps itself, by the bucket's index; register_for_checkpointing()
// saves it.
//
// Threads:  called on the thread of the backward, one at a time. What a hook throws ends the backward.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <variant>
#include <vector>

#include <ATen/core/Tensor.h>

#include <accel/export.h>
#include <accel/types.h>

namespace accel {

class ProcessGroup;

// This rank's gradients of some parameters of one dtype, neither averaged nor divided.
struct GradientBucket {
  at::Tensor buffer;  // [n] of all parameters, one after the other; a hook may write to it
  std::vector<at::Tensor>
      parameters;  // whose gradients they are, in the order of the buffer; not to be written to
  std::vector<std::int64_t> offsets;  // of each in the buffer, in elements
  std::size_t index = 0;  // from 0. It names the same parameters in every step, but for one change
                          // after the first where the buckets are LibTorch's
  bool is_last = false;   // of this backward

  // Views of the buffer, laid out as the parameters.
  [[nodiscard]] ACCEL_EXPORT std::vector<at::Tensor> gradients() const;
};

// The ranks that have copies of the model. Every rank makes the same calls. Errors  throws kPeerLost, kProcessGroup.
class ACCEL_EXPORT CommunicationGroup {
 public:
  explicit CommunicationGroup(std::shared_ptr<ProcessGroup> group);

  [[nodiscard]] int rank() const noexcept;
  [[nodiscard]] int size() const noexcept;
  // In place. Tensors of 16 bits are added up in fp32 by ranks that share memory, and rounded once.
  void all_reduce_(at::Tensor values, Reduction reduction = Reduction::kSum);
  // [W, ...] of all W ranks, which bring the same shape.
  [[nodiscard]] at::Tensor all_gather(const at::Tensor& values);
  void broadcast_(at::Tensor values, int from_process = 0);

 private:
  std::shared_ptr<ProcessGroup> group_;
};

// Returns what the gradients of all ranks become, the same on all: [n], of any floating-point dtype; may be the buffer.
using CommunicationHook = std::function<at::Tensor(GradientBucket&, CommunicationGroup&)>;

// The average: divided by the number of ranks and summed.
ACCEL_EXPORT at::Tensor allreduce_hook(GradientBucket& bucket, CommunicationGroup& group);
// The average of what is rounded to 16 bits, divided by the number of ranks and summed: half of the bytes of fp32.
ACCEL_EXPORT at::Tensor fp16_compress_hook(GradientBucket& bucket, CommunicationGroup& group);
ACCEL_EXPORT at::Tensor bf16_compress_hook(GradientBucket& bucket, CommunicationGroup& group);
// The hook gets the bucket rounded to 16 bits, and its result is rounded so, too.
ACCEL_EXPORT CommunicationHook fp16_compress_wrapper(CommunicationHook hook);
ACCEL_EXPORT CommunicationHook bf16_compress_wrapper(CommunicationHook hook);

// Of kPowerSgd and kBatchedPowerSgd: gradients G go between the ranks as P Q^T of few columns, and what that leaves out is added to
// those of the next step. Names and defaults of PowerSGDState of PyTorch.
// Memory: with error feedback a copy of all gradients. Part of checkpoints: a run that goes on from one, with as many ranks, is
// to the bit the one that was not interrupted.
// Source: Vogels et al. 2019, "PowerSGD", algorithms 1 and 2; tests/peer/train_peer.py compares with PyTorch's.
struct PowerSGDOptions {
  std::int64_t matrix_approximation_rank = 1;  // columns of P and Q, 1 or more
  std::int64_t start_powerSGD_iter =
      1000;  // exchanges that average first; 2 or more with either of
             // the next two
  bool use_error_feedback = true;
  bool warm_start = true;  // Q of a step is that of the step before; else drawn anew
  double min_compression_rate =
      2;  // kPowerSgd: a gradient that would not become smaller by more is averaged
  double orthogonalization_epsilon = 0;  // kPowerSgd, rank 1 and 2: added to the norm of a column
  std::uint32_t random_seed = 0;         // of Q; the same on all ranks
};

// One that has a name, or one of your own.
using DDPCommunicationHook = std::variant<DDPCommunicationHookType, CommunicationHook>;

}  // namespace accel
