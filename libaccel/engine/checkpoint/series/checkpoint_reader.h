// CheckpointReader: brings a checkpoint into memory, verified, before anything is changed.
//
// Threads:  the thread that trains; every rank makes the same calls.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include <accel/checkpoint.h>

#include "libaccel/engine/checkpoint/files/checkpoint_source.h"
#include "libaccel/engine/checkpoint/ranks/rank_exchange.h"

namespace accel::checkpoint {

// Reads, hashes and compares everything this rank needs. Nothing has changed when it returns or
// throws.
class StagedCheckpoint {
 public:
  // Takes what it needs of `source`, which may go afterwards. Errors  as load_checkpoint().
  StagedCheckpoint(CheckpointSource& source, const CheckpointObjects& objects, int rank);

  // Hands schedulers, loaders, scaler and custom objects their states: each may refuse its own.
  void apply_states();
  // Models, optimizers, and the random state last. Does not fail.
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
};

// Loads `folder` on all ranks. Errors as load_checkpoint().
LoadReport read_checkpoint(RankExchange& ranks,
                           const std::filesystem::path& folder,
                           const CheckpointObjects& objects);

}  // namespace accel::checkpoint
