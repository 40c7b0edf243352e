// AccelerateSource: the files of HF Accelerate's save_state(), as if they were those of a checkpoint of our own.
//
//   what is asked for             what is read where that is not there
//   model.safetensors             pytorch_model.bin
//   optimizer.json, .safetensors  optimizer.bin
//   scheduler.json                scheduler.bin
//   scaler.json                   scaler.pt
//   random_states_0.json          random_states_0.pkl
//   custom_checkpoint_0.json      custom_checkpoint_0.pkl
//
// A folder with a manifest is compared with it, file by file, as any other; in one without, which Accelerate itself saved, files
// are counted instead, and loaders have no states.
//
// Names of weights that begin with "module." lose that: they were saved of a model that DDP wraps.
//
// Threads:  one at a time.
#pragma once

#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <accel/checkpoint.h>

#include "libaccel/engine/checkpoint/files/checkpoint_source.h"
#include "libaccel/engine/checkpoint/files/python_file.h"
#include "libaccel/engine/checkpoint/states/optimizer_state.h"

namespace accel::checkpoint {

class AccelerateSource final : public CheckpointSource {
 public:
  // `objects` are borrowed: optimizers name their parameters. Errors  kCheckpointIncomplete: a folder that neither has a manifest
  // nor is one of Accelerate's; those of FolderSource, read_accelerate_optimizer() and PythonFile.
  AccelerateSource(std::filesystem::path folder, const CheckpointObjects& objects);

  [[nodiscard]] const std::filesystem::path& name() const noexcept override { return folder_; }
  [[nodiscard]] const Manifest& manifest() const noexcept override { return manifest_; }
  [[nodiscard]] bool has(const std::string& file) const override;
  [[nodiscard]] std::string text(const std::string& file) override;
  [[nodiscard]] LoadedParts parts(const std::string& file, const PartsWanted& wanted) override;
  [[nodiscard]] std::vector<std::string> notices() const override { return notices_; }

 private:
  [[nodiscard]] Manifest counted() const;
  [[nodiscard]] std::int64_t saved_step();
  [[nodiscard]] bool is_there(const std::string& file) const;
  // A file that is there, once it was compared with the manifest.
  [[nodiscard]] std::unique_ptr<PythonFile> open(const std::string& file);
  [[nodiscard]] LoadedParts weights(const std::string& stem, const PartsWanted& wanted);
  [[nodiscard]] bool strips_wrapper(const std::vector<std::string>& names) const;
  [[nodiscard]] SavedOptimizer& optimizer(const std::string& stem);
  [[nodiscard]] StateDict& state(const std::string& stem);
  void notice(const std::string& text) { notices_.push_back(folder_.string() + " " + text); }

  std::filesystem::path folder_;
  const CheckpointObjects& objects_;
  std::optional<FolderSource> verified_;  // with a manifest
  Manifest manifest_;
  std::vector<std::string> notices_;
  std::map<std::string, SavedOptimizer> optimizers_;  // by stem, until both files were asked for
  std::map<std::string, StateDict> states_;
};

}  // namespace accel::checkpoint
