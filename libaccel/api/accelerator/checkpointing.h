// Checkpointing: how a run of an Accelerator is saved, begun and gone on with, on disk and in the memory of its launcher.
//
// Owns the series of the project's checkpoints, the save that is under way in the background, and the checkpoints in memory. At the
// boundaries of a loop it saves a run to memory, and saves and ends it when its job has to make room (preemption.h).
//
// Which is newer, the checkpoint in memory or the one on disk, is told by what was on disk when the other was saved: numbers of
// a project's checkpoints only grow, so a higher one than was there then was written afterwards.
//
// Threads:  the thread that trains; every rank makes the same calls.
// Errors    throws kPeerLost, kProcessGroup, and what accel/checkpoint.h says.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>

#include <accel/async_save.h>
#include <accel/checkpoint.h>

#include "libaccel/api/accelerator/checkpoint_content.h"
#include "libaccel/api/accelerator/preemption.h"
#include "libaccel/engine/checkpoint/memory/memory_checkpoints.h"

namespace accel::detail {

class Checkpointing final : public StepObserver {
 public:
  // Throws kInvalidArgument for options that cannot be met.
  Checkpointing(const Preparation& prepared, Training& training);

  [[nodiscard]] const ProjectConfiguration& project() const noexcept { return project_; }
  [[nodiscard]] CheckpointContent& content() noexcept { return content_; }
  [[nodiscard]] std::int64_t iteration() const noexcept {
    return series_ ? series_->iteration() : project_.iteration;
  }

  CheckpointInfo save(const std::filesystem::path& folder, const SaveStateOptions& files = {});
  void begin_save(const std::filesystem::path& folder, const SaveStateOptions& files = {});
  std::optional<CheckpointInfo> finish_save();
  CheckpointInfo load(const std::filesystem::path& folder, const LoadStateOptions& options = {});
  std::optional<CheckpointInfo> begin_run(RunStart start);
  bool save_in_memory();
  std::optional<CheckpointInfo> load_in_memory();
  [[noreturn]] void save_and_exit();

  // Whether at_boundary() has something to do.
  [[nodiscard]] bool wants_boundaries() const {
    return preemption_.has_value() || project_.memory_checkpoint_every > 0;
  }
  void at_boundary() override;

 private:
  // The numbered checkpoints. Throws kInvalidArgument without a project_dir.
  CheckpointSeries& series();
  [[nodiscard]] bool is_numbered(const std::filesystem::path& folder) const {
    return project_.automatic_checkpoint_naming || folder.empty();
  }
  [[nodiscard]] SaveOptions save_options(const SaveStateOptions& files) const;
  // Tells the supervisor, when there is one, of the checkpoint that was just saved.
  void commit(CheckpointInfo& checkpoint) const;
  // The newest complete one of the project; number -1: none. As rank 0 sees it.
  checkpoint::DiskMark newest_on_disk();
  std::optional<LoadReport> load_when_saved(const CheckpointContent::Load& load,
                                            const LoadStateOptions& options = {});
  const CheckpointInfo& take_over(const LoadReport& report);
  void set_up_preemption();

  // nullptr where a rank has no supervisor.
  checkpoint::MemoryCheckpoints* memory();
  // Whether this job has begun before: after a crash, or with other nodes, which counts as no restart.
  [[nodiscard]] bool is_restarted();
  // Takes the memory that memory_checkpoint_every needs before the first step.
  void reserve_memory();
  enum class DiskCounts { kYes, kNo };  // whether a newer checkpoint of the project goes before it
  // std::nullopt: there is none, with a notice when one was to be expected.
  [[nodiscard]] std::optional<LoadReport> load_from_memory(DiskCounts disk);

  const Preparation& prepared_;
  Training& training_;
  ProjectConfiguration project_;
  CheckpointContent content_;
  std::filesystem::path series_folder_;     // absolute; empty: there is no project
  std::optional<CheckpointSeries> series_;  // made at the first save or load
  bool has_gone_on_ = false;         // from memory, also in a generation that counts as no restart
  std::optional<AsyncSave> saving_;  // until somebody has asked for its end
  std::optional<checkpoint::DiskMark> newest_on_disk_;  // as long as it holds
  std::optional<Preemption> preemption_;                // when the run is to save and exit
  int steps_since_memory_ = 0;  // boundaries since the last checkpoint in memory
  std::unique_ptr<checkpoint::MemoryKeeper> memory_keeper_;
  std::unique_ptr<checkpoint::MemoryCheckpoints> memory_;  // made at the first use
  bool looked_for_memory_ = false;
};

}  // namespace accel::detail
