// CheckpointWriter: makes a checkpoint folder appear, whole, on all ranks or on none.
//
// Threads:  the thread that trains; every rank makes the same calls. PreparedSave::finish() may run on another one.
#pragma once

#include <filesystem>
#include <memory>

#include <accel/checkpoint.h>

#include "libaccel/engine/checkpoint/files/target_folder.h"
#include "libaccel/engine/checkpoint/ranks/rank_exchange.h"
#include "runtime/checkpoint/file_system.h"

namespace accel::checkpoint {

class CopySpace;

// A save in two parts: the constructor needs the objects, the rest does not, once copies are taken. Errors of both as
// save_checkpoint().
class PreparedSave {
 public:
  // Makes the temporary folder, runs hooks and collects what this rank is to write.
  PreparedSave(FileSystem& file_system,
               RankExchange& ranks,
               const std::filesystem::path& folder,
               const CheckpointObjects& objects,
               const SaveOptions& options,
               Existing existing);
  // Without finish() nothing is left of it.
  ~PreparedSave();

  // From here on the objects may change; with AsyncCopy::kBeforeUpdate, by who calls before_state_is_written() first. space: has the
  // copies. Requires: every rank calls it.
  void copy_tensors(RankExchange& ranks, CopySpace& space);
  // Writes and commits. ranks: may be another exchange of the same ranks.
  CheckpointInfo finish(RankExchange& ranks);

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

// Errors  as save_checkpoint().
CheckpointInfo write_checkpoint(FileSystem& file_system,
                                RankExchange& ranks,
                                const std::filesystem::path& folder,
                                const CheckpointObjects& objects,
                                const SaveOptions& options,
                                Existing existing);

// The rank that makes the folder for this one: 0, or the first of the node.
[[nodiscard]] int leader_of(const RankExchange& ranks, bool save_on_each_node);

}  // namespace accel::checkpoint
