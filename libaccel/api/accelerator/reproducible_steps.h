// ReproducibleSteps: the micro-batches of reproducible training: which one a backward is of, what its random numbers begin with, and
// the sums of their gradients (engine/gradients/subtree_sums.h).
//
// A step has micro-batches 0 ... total - 1; this rank has a run of them. begin_micro_batch(), a forward, one backward, for each; no
// backward exchanges gradients, the last one of the run does for all.
//
// The generators of LibTorch are seeded for each micro-batch with a number made of (seed, step, micro-batch). The seed is rank 0's when
// training begins; it goes into checkpoints with the step, the micro-batches and the threads of a rank.
//
// Threads:  the thread that trains; every rank makes the same steps.
// Errors    throws kPeerLost, kProcessGroup.
#pragma once

#include <cstdint>
#include <map>
#include <optional>

#include <accel/micro_batches.h>
#include <accel/state_dict.h>

#include "libaccel/api/accelerator/preparation.h"
#include "libaccel/engine/gradients/subtree_sums.h"
#include "libaccel/engine/precision/precision_recipe.h"

namespace accel::detail {

class ReproducibleSteps {
 public:
  // What checkpoints have of it.
  struct Record {
    std::int64_t seed = 0;
    std::int64_t step = 0;
    std::int64_t micro_batches = 0;
    std::int64_t threads = 0;  // of a rank: kernels sum in parts by them
  };

  // Throws as micro_batches_of().
  ReproducibleSteps(const Preparation& prepared, std::int64_t total);

  [[nodiscard]] const MicroBatches& run() const noexcept { return run_; }
  // Of all ranks, since training began.
  [[nodiscard]] std::int64_t num_micro_batches() const noexcept {
    return record_.step * run_.total;
  }
  // The one that began last.
  [[nodiscard]] std::int64_t micro_batch() const noexcept { return next_ - 1; }
  [[nodiscard]] bool is_last() const noexcept { return next_ == run_.end; }

  // Throws kInvalidArgument when the one before had no backward.
  void begin_micro_batch();
  // Throws kInvalidArgument outside of a micro-batch.
  void begin_backward();
  // Takes its gradients; at the end of the run the models have those of the step.
  void end_backward();
  // The micro-batches of the step that is under way are forgotten.
  void begin_anew();

  void save(StateDict& state) const;
  void load(const StateDict& state);
  // After a checkpoint was loaded: rank 0's record counts, which other ranks may have none of. Requires: every rank calls it.
  void agree_on_record();

 private:
  void agree_on_seed();
  void sum_over_ranks();

  const Preparation& prepared_;
  MicroBatches run_;
  std::int64_t next_;         // micro-batch
  bool has_backward_ = true;  // of the one that began last
  bool has_seed_ = false;
  Record record_;
  std::optional<Record> loaded_;
  std::map<const ModelRuntime*, SubtreeSums> sums_;
};

// Throws kUnsupported where a model, or an option, cannot be reproducible.
void refuse_irreproducible(const torch::nn::Module& module,
                           const AcceleratorOptions& options,
                           const std::optional<sharding::FsdpSettings>& fsdp,
                           const PrecisionRecipe& recipe,
                           int num_processes);

// What AcceleratorOptions::reproducible says, else ACCEL_REPRODUCIBLE. Throws kEnvInvalid.
[[nodiscard]] bool wants_reproducible(const AcceleratorOptions& options);

}  // namespace accel::detail
