// MemoryUse: the bytes of a prepared model and its optimizer on this rank, by purpose.
//
//   const accel::MemoryUse use = accel::memory_use(model, optimizer);
//   std::cout << use.parameters + use.gradients + use.optimizer;
//
// It counts tensors and units, not the process; docs/guides/sharding.md has the formulas. Other memory of LibTorch (activations, DDP's
// buckets without gradient_as_bucket_view) is not counted.
//
// Threads:  the thread that trains.
// Cost:     a walk over the parameters and the optimizer's state; no collective, no copy of values.
#pragma once

#include <cstdint>
#include <memory>

#include <accel/export.h>
#include <accel/optim.h>
#include <accel/prepared_model.h>

namespace accel {

// Bytes. Ranks of a node share the memory of the parameters; each rank counts its own shards.
struct MemoryUse {
  std::int64_t parameters =
      0;  // trained: this rank's shards where they are divided (on disk: none), else all of them
  std::int64_t masters = 0;  // shards in full precision beside them, with a mixed precision policy
  std::int64_t whole = 0;    // frozen and ignored parameters, and buffers
  std::int64_t gradients = 0;  // that are there now: of shards where they are divided, else whole
  std::int64_t optimizer =
      0;  // tensors of its state in memory, not those on disk; 0 before the first step

  // Whole units in memory during their use, with the shards of all ranks: FULL_SHARD over several nodes, on disk or on GPUs, else 0.
  std::int64_t paged = 0;
  std::int64_t peak_paged = 0;
  // Gradients of units that a backward is filling, and their maximum so far: if gradients are divided, else 0.
  std::int64_t filling = 0;
  std::int64_t peak_filling = 0;
};

namespace detail {

[[nodiscard]] ACCEL_EXPORT MemoryUse memory_use(ModelRuntime& runtime);
// Throws kUnsupported, naming the type, for an optimizer that is not LibTorch's.
[[nodiscard]] ACCEL_EXPORT std::int64_t optimizer_bytes(torch::optim::Optimizer& optimizer);

}  // namespace detail

template <typename Handle>
[[nodiscard]] MemoryUse memory_use(const Prepared<Handle>& model) {
  return detail::memory_use(*model.runtime());
}

// Counts all parameters of the optimizer, also parameters of other models. Throws kUnsupported, naming the type, for an optimizer that is
// not LibTorch's.
template <typename Handle>
[[nodiscard]] MemoryUse memory_use(const Prepared<Handle>& model,
                                   const AcceleratedOptimizer& optimizer) {
  MemoryUse use = memory_use(model);
  use.optimizer = detail::optimizer_bytes(optimizer.optimizer());
  return use;
}

}  // namespace accel
