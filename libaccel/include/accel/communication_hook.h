// CommunicationHook: exchanges the gradients of a bucket between copies of a model, in place of the average.
//
//   accel::Accelerator accelerator({.ddp = {.comm_hook = accel::DDPCommunicationHookType::kBf16}});
//
//   accel::Accelerator accelerator(
//       {.ddp = {.comm_hook = [](accel::GradientBucket& bucket, accel::CommunicationGroup& group) {
//          group.all_reduce_(bucket.buffer.div_(group.size()));
//          return bucket.buffer;
//        }}});
//
// It is the `register_comm_hook` of PyTorch's DDP, with the names of HF Accelerate and of torch.distributed's default hooks. A
// backward that exchanges gradients calls the hook once for each bucket, in the order of the indices, the same on all ranks. A
// hook stores its own state between steps (an error to feed back, for instance), by the bucket's index.
// register_for_checkpointing() saves that state.
//
// Threads:  one call at a time, on the thread of the backward. An exception of the hook ends the backward.
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

// Gradients of this rank for some parameters of one dtype. They are neither averaged nor divided.
struct GradientBucket {
  at::Tensor buffer;  // [n]: the gradients in a row; a hook may write to it
  std::vector<at::Tensor>
      parameters;  // the parameters of these gradients, in the order of the buffer; do not write
  std::vector<std::int64_t> offsets;  // where each gradient begins in the buffer, in elements
  std::size_t index = 0;  // from 0. An index means the same parameters in every step, except that
                          // LibTorch's buckets change once, after the first step
  bool is_last = false;   // the last bucket of this backward

  // Views of the buffer, with the sizes and strides of the parameters.
  [[nodiscard]] ACCEL_EXPORT std::vector<at::Tensor> gradients() const;
};

// The ranks with copies of the model. Every rank must make the same calls. Errors  throws kPeerLost, kProcessGroup.
class ACCEL_EXPORT CommunicationGroup {
 public:
  explicit CommunicationGroup(std::shared_ptr<ProcessGroup> group);

  [[nodiscard]] int rank() const noexcept;
  [[nodiscard]] int size() const noexcept;
  // In place. Ranks that share memory add up tensors of 16 bits in fp32 and round once.
  void all_reduce_(at::Tensor values, Reduction reduction = Reduction::kSum);
  // [W, ...]: the values of all W ranks. All must have the same shape.
  [[nodiscard]] at::Tensor all_gather(const at::Tensor& values);
  void broadcast_(at::Tensor values, int from_process = 0);

 private:
  std::shared_ptr<ProcessGroup> group_;
};

// Returns the new gradients, the same on all ranks: [n], of any floating-point dtype. It may return the buffer.
using CommunicationHook = std::function<at::Tensor(GradientBucket&, CommunicationGroup&)>;

// The average: each gradient is divided by the number of ranks, then summed.
ACCEL_EXPORT at::Tensor allreduce_hook(GradientBucket& bucket, CommunicationGroup& group);
// The average in 16 bits: gradients are rounded, divided by the number of ranks and summed. It sends half of the bytes of fp32.
ACCEL_EXPORT at::Tensor fp16_compress_hook(GradientBucket& bucket, CommunicationGroup& group);
ACCEL_EXPORT at::Tensor bf16_compress_hook(GradientBucket& bucket, CommunicationGroup& group);
// `hook` gets the bucket rounded to 16 bits. Its result is rounded to 16 bits, too.
ACCEL_EXPORT CommunicationHook fp16_compress_wrapper(CommunicationHook hook);
ACCEL_EXPORT CommunicationHook bf16_compress_wrapper(CommunicationHook hook);

// Options of kPowerSgd and kBatchedPowerSgd. The ranks exchange gradients as P Q^T with few columns. The remainder is added to the
// gradients of the next step. Names and defaults are the same as in PyTorch's PowerSGDState.
// Memory: with error feedback a copy of all gradients. Checkpoints contain the state: a run that resumes with the same number of
// ranks equals an uninterrupted one to the bit.
// Source: Vogels et al. 2019, "PowerSGD", algorithms 1 and 2; tests/peer/train_peer.py compares with PyTorch's.
struct PowerSGDOptions {
  std::int64_t matrix_approximation_rank = 1;  // columns of P and Q, 1 or more
  std::int64_t start_powerSGD_iter =
      1000;  // exchanges that average first; 2 or more with either of
             // the next two
  bool use_error_feedback = true;
  bool warm_start = true;  // a step begins with the last step's Q; otherwise Q is drawn again
  double min_compression_rate =
      2;  // kPowerSgd: gradients that do not shrink by more than this are averaged
  double orthogonalization_epsilon = 0;  // kPowerSgd, rank 1 and 2: added to the norm of a column
  std::uint32_t random_seed = 0;         // of Q; the same on all ranks
};

// A hook with a name, or your own function.
using DDPCommunicationHook = std::variant<DDPCommunicationHookType, CommunicationHook>;

}  // namespace accel
