// AccelerateSource: the files of HF Accelerate's save_state(), as if they were those of a checkpoint of our own.
//
//   what is asked for             what is read where that is not there
//   model.safetensors             pytorch_model.bin; of FSDP pytorch_model_fsdp.bin, pytorch_model_fsdp_0/
//   optimizer.json, .safetensors  optimizer.bin; of FSDP also optimizer_0/
//   scheduler.json                scheduler.bin
//   scaler.json                   scaler.pt
//   random_states_0.json          random_states_0.pkl
//   custom_checkpoint_0.json      custom_checkpoint_0.pkl
//
// A folder with a manifest is compared with it, file by file, as any other; in one without, which Accelerate itself saved, files
// are counted instead, and loaders have no states.
//
// Names of weights that begin with "module." lose that: they were saved of a model that DDP wraps. The folders of FSDP
// (SHARDED_STATE_DICT) are of torch.distributed.checkpoint, and may be read by other numbers of ranks.
//
// Threads:  one at a time.
#pragma once

#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include <accel/checkpoint.h>

#include "checkpoint_tools/merge/distcp_metadata.h"
#include "libaccel/engine/checkpoint/files/checkpoint_source.h"
#include "libaccel/engine/checkpoint/files/python_file.h"
#include "libaccel/engine/checkpoint/states/optimizer_state.h"

namespace accel::checkpoint {

class AccelerateSource final : public CheckpointSource {
 public:
  // `objects` are borrowed: optimizers name their parameters. Errors  kCheckpointIncomplete: a folder that neither has a manifest
  // nor is one of Accelerate's; kUnsupported: one of DeepSpeed, or with a file for each rank; those of FolderSource,
  // read_accelerate_optimizer() and PythonFile. `part`: "model_1", "optimizer": only that is read, and its files of FSDP come before
  // all others, also where they lie beside a checkpoint whose manifest does not list them.
  AccelerateSource(std::filesystem::path folder,
                   const CheckpointObjects& objects,
                   std::string part = {});

  [[nodiscard]] const std::filesystem::path& name() const noexcept override { return folder_; }
  [[nodiscard]] const Manifest& manifest() const noexcept override { return manifest_; }
  [[nodiscard]] bool has(const std::string& file) const override;
  [[nodiscard]] std::string text(const std::string& file) override;
  [[nodiscard]] LoadedParts parts(const std::string& file,
                                  const PartsWanted& wanted,
                                  LoadedMemory memory) override;
  [[nodiscard]] std::vector<std::string> notices() const override { return notices_; }

 private:
  [[nodiscard]] Manifest counted() const;
  [[nodiscard]] std::int64_t saved_step();
  [[nodiscard]] bool is_there(const std::string& file) const;
  // Of torch.distributed.checkpoint. No manifest of ours lists what is in folders.
  [[nodiscard]] bool is_folder(const std::string& name) const;
  // A file that is there, once it was compared with the manifest.
  [[nodiscard]] std::unique_ptr<PythonFile> open(const std::string& file);
  [[nodiscard]] LoadedParts weights(const std::string& stem,
                                    const PartsWanted& wanted,
                                    LoadedMemory memory);
  // Whether the part's files of FSDP are there, and the manifest does not list them.
  [[nodiscard]] bool is_beside_checkpoint() const;
  [[nodiscard]] bool strips_wrapper(const std::vector<std::string>& names) const;
  struct FoundOptimizer {
    SavedOptimizer saved;
    // Of a folder of torch.distributed.checkpoint, and where the tensors on the meta device are in it.
    launcher::DistcpMetadata metadata;
    std::unordered_map<const c10::TensorImpl*, std::size_t> stored;
  };
  [[nodiscard]] FoundOptimizer& optimizer(const std::string& stem);
  [[nodiscard]] LoadedParts optimizer_parts(const std::string& stem, const PartsWanted& wanted);
  [[nodiscard]] StateDict& state(const std::string& stem);
  void notice(const std::string& text) { notices_.push_back(folder_.string() + " " + text); }

  std::filesystem::path folder_;
  const CheckpointObjects& objects_;
  std::string part_;                      // empty: all are read
  std::optional<FolderSource> verified_;  // with a manifest
  Manifest manifest_;
  std::vector<std::string> notices_;
  std::map<std::string, FoundOptimizer> optimizers_;  // by stem
  std::map<std::string, StateDict> states_;
};

}  // namespace accel::checkpoint
