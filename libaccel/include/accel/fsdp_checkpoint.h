// FsdpCheckpoint: one model or one optimizer in the files that HF Accelerate writes under FSDP, with the names of accelerate.utils.
//
//   accel::save_fsdp_model(accelerator, model, "last");          last/pytorch_model_fsdp.bin
//   accel::save_fsdp_optimizer(accelerator, optimizer, "last");  last/optimizer.bin
//   accel::load_fsdp_model(accelerator, model, "last");
//
// Reads pytorch_model_fsdp.bin and optimizer.bin (FULL_STATE_DICT), and pytorch_model_fsdp_0/ and optimizer_0/ of
// torch.distributed.checkpoint (SHARDED_STATE_DICT), with any number of ranks and any strategy, also without sharding and in one
// process. Writes FULL_STATE_DICT, for every state_dict_type(). The names of further objects have a number: pytorch_model_fsdp_1.bin.
// save_state() with CheckpointFormat::kAccelerate and load_state() do this for all prepared objects.
//
// No file is executed. A load changes nothing when it throws.
//
// Threads:  the thread that trains. Requires: every rank makes the same calls, with models and optimizers that were prepared.
// Errors    throw kInvalidArgument: it was not prepared by this Accelerator; kUnsupported (an optimizer that PyTorch does not have;
//           a class in a pickle; folders of DeepSpeed), kCheckpointIncomplete, kCheckpointMismatch, kSafetensorsMismatch (names of
//           weights), kDiskFull, kFileIo, kPeerLost.
// Cost:     a save gathers the whole tensors on rank 0. From a folder each rank loads only the files' parts that overlap its own;
//           from a single file every rank reads everything.
// Source:   accelerate/utils/fsdp_utils.py; tests/peer/fsdp_checkpoints.py.
#pragma once

#include <cstddef>
#include <filesystem>

#include <accel/accelerator.h>
#include <accel/export.h>

namespace accel {

namespace detail {
class ACCEL_EXPORT FsdpFiles {
 public:
  explicit FsdpFiles(Accelerator& accelerator) : accelerator_(accelerator) {}

  void save_model(const ModelRuntime& model,
                  const std::filesystem::path& folder,
                  std::size_t index);
  void load_model(const ModelRuntime& model,
                  const std::filesystem::path& folder,
                  std::size_t index);
  void save_optimizer(const AcceleratedOptimizer& optimizer,
                      const std::filesystem::path& folder,
                      std::size_t index);
  void load_optimizer(const AcceleratedOptimizer& optimizer,
                      const std::filesystem::path& folder,
                      std::size_t index);

 private:
  Accelerator& accelerator_;
};
}  // namespace detail

template <typename Handle>
void save_fsdp_model(Accelerator& accelerator,
                     const Prepared<Handle>& model,
                     const std::filesystem::path& output_dir,
                     std::size_t model_index = 0) {
  detail::FsdpFiles(accelerator).save_model(*model.runtime(), output_dir, model_index);
}

template <typename Handle>
void load_fsdp_model(Accelerator& accelerator,
                     const Prepared<Handle>& model,
                     const std::filesystem::path& input_dir,
                     std::size_t model_index = 0) {
  detail::FsdpFiles(accelerator).load_model(*model.runtime(), input_dir, model_index);
}

inline void save_fsdp_optimizer(Accelerator& accelerator,
                                const AcceleratedOptimizer& optimizer,
                                const std::filesystem::path& output_dir,
                                std::size_t optimizer_index = 0) {
  detail::FsdpFiles(accelerator).save_optimizer(optimizer, output_dir, optimizer_index);
}

// Loads the files of save_fsdp_optimizer() into the optimizer.
inline void load_fsdp_optimizer(Accelerator& accelerator,
                                const AcceleratedOptimizer& optimizer,
                                const std::filesystem::path& input_dir,
                                std::size_t optimizer_index = 0) {
  detail::FsdpFiles(accelerator).load_optimizer(optimizer, input_dir, optimizer_index);
}

}  // namespace accel
