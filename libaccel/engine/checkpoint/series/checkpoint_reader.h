// CheckpointReader: looks at all of a checkpoint, verified, before anything is changed.
//
// Threads:  the thread that trains; every rank makes the same calls.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <accel/checkpoint.h>

#include "libaccel/engine/checkpoint/files/checkpoint_source.h"
#include "libaccel/engine/checkpoint/ranks/rank_exchange.h"
#include "runtime/checkpoint/mapped_file.h"

namespace accel::checkpoint {

// Reads, hashes and compares everything this rank needs. Nothing has changed when a function returns or
// throws, but for those that apply.
class StagedCheckpoint {
 public:
  // Without the models where hooks choose them (choose_models). Takes what it needs of `source`. Errors  as load_checkpoint().
  StagedCheckpoint(CheckpointSource& source, const CheckpointObjects& objects, int rank);
  // The weights of `models`, in turn, which hooks have left. `source` may go afterwards. Errors  as load_checkpoint(). Requires:
  // hooks choose them, and it is called once, with the same source and objects.
  void stage_models(CheckpointSource& source,
                    const CheckpointObjects& objects,
                    const std::vector<torch::nn::Module*>& models);

  // Hands schedulers, loaders, scaler and custom objects their states: each may refuse its own. Before that nothing has changed;
  // Errors  kCheckpointIncomplete: somebody has written to a file since it was compared.
  void apply_states();
  // Models, optimizers, and the random state last. Fails only with kCheckpointIncomplete, when somebody writes to a file just now.
  void apply_tensors();

  // Without its folder.
  [[nodiscard]] const CheckpointInfo& info() const noexcept { return info_; }
  // What this rank should tell the user.
  [[nodiscard]] const std::vector<std::string>& notices() const noexcept { return notices_; }

 private:
  friend class Stager;
  CheckpointInfo info_;
  std::vector<std::string> notices_;
  std::vector<std::function<void()>> states_;
  std::vector<std::function<void()>> tensors_;
  std::vector<std::function<void()>> models_;
  std::vector<std::shared_ptr<const MappedFile>> mapped_;  // whose tensors are to be copied
};

// Loads `folder` on all ranks. Errors as load_checkpoint().
LoadReport read_checkpoint(RankExchange& ranks,
                           const std::filesystem::path& folder,
                           const CheckpointObjects& objects);

}  // namespace accel::checkpoint
