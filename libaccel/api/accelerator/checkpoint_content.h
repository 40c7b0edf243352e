// CheckpointContent: what a checkpoint of an Accelerator holds, on disk and in memory, and how what was loaded gets to its place.
//
// Owns the registered objects and hooks and, while a checkpoint is made or read, whole optimizers in place of divided ones
// (whole_optimizer.h).
//
// Threads:  the thread that trains; every rank makes the same calls.
// Errors    throws kPeerLost, kProcessGroup.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include <torch/optim/optimizer.h>

#include <accel/accelerator.h>
#include <accel/checkpoint.h>
#include <accel/state_hooks.h>

#include "libaccel/api/accelerator/training.h"
#include "libaccel/engine/sharding/full_parameters.h"
#include "libaccel/tensors/divided_tensors.h"

namespace accel::detail {

enum class SaveTo { kDisk, kMemory };

class CheckpointContent {
 public:
  // save_on_each_node: as of ProjectConfiguration.
  CheckpointContent(const Preparation& prepared, Training& training, bool save_on_each_node)
      : prepared_(prepared), training_(training), save_on_each_node_(save_on_each_node) {}

  RemovableHandle add_save_hook(SaveStateHook hook);
  RemovableHandle add_load_hook(LoadStateHook hook);
  // Must outlive this object or clear().
  void add_object(Stateful& object) { custom_objects_.push_back(&object); }
  void clear() { custom_objects_.clear(); }

  // With the parameters in full precision while `save` runs. `files`: of a save to disk.
  void save(SaveTo to,
            const std::function<void(const CheckpointObjects&)>& save,
            const SaveStateOptions& files = {});
  // Runs `load`, which writes to parameters, and gives optimizers of divided models what it loaded. std::nullopt: it loaded
  // nothing.
  using Load = std::function<std::optional<LoadReport>(const CheckpointObjects&)>;
  std::optional<LoadReport> load(const Load& load, const LoadStateOptions& options = {});
  // The same where `load` leaves out all optimizers, or all but one (by its number): theirs stays as it is. No hooks.
  std::optional<LoadReport> load_part(const Load& load, std::optional<std::size_t> optimizer);
  // Borrowed. To save, the ranks agree on which states there are.
  [[nodiscard]] CheckpointObjects objects_to_save(SaveTo to, const SaveStateOptions& files = {});

  // What each rank has the same of: trained parameters of copies (DDP), and the states that optimizers have of them.
  [[nodiscard]] std::vector<at::Tensor> replicas() const;

 private:
  // Those that hooks or registered objects, where they are called here, may look at.
  enum class Callers { kNone, kObjects, kHooksAndObjects };
  struct Shown {
    FullParameters which = FullParameters::kUndivided;
    std::vector<at::Tensor> asked;  // of kAsked
  };
  [[nodiscard]] CheckpointObjects checkpoint_objects();
  [[nodiscard]] CheckpointObjects objects_to_load();
  using LoadsOptimizer = std::function<bool(std::size_t number)>;
  std::optional<LoadReport> load_objects(const Load& load,
                                         const LoadStateOptions& options,
                                         const LoadsOptimizer& loads_optimizer);
  // Lets each rank of a node keep its share of replicas(), where the ranks have the same.
  void share_replicas();
  // Whether files of divided models are written by one rank, from whole tensors.
  [[nodiscard]] bool writes_whole_tensors(const SaveStateOptions& files) const;
  // Whether this rank writes what one of all ranks, or one of each node, does.
  [[nodiscard]] bool is_writer(SaveTo to) const;
  // What becomes of optimizers' states that are gathered for a save.
  [[nodiscard]] GatheredStates gathered_to_save(SaveTo to, const SaveStateOptions& files) const;
  [[nodiscard]] Shown shown_to_save(SaveTo to, const SaveStateOptions& files) const;
  [[nodiscard]] std::vector<at::Tensor> parameters_seen_by(Callers callers) const;
  // What callers look at, where a model has masters and a rank looks at any; else, or beside it, `which`.
  [[nodiscard]] Shown shown_to(Callers callers, FullParameters which) const;
  [[nodiscard]] std::vector<at::Tensor> divided_parameters() const;

  const Preparation& prepared_;
  Training& training_;
  bool save_on_each_node_;
  std::vector<Stateful*> custom_objects_;
  // Shared with the handles that remove them.
  std::shared_ptr<StateHooks<SaveStateHook>> save_hooks_ =
      std::make_shared<StateHooks<SaveStateHook>>();
  std::shared_ptr<StateHooks<LoadStateHook>> load_hooks_ =
      std::make_shared<StateHooks<LoadStateHook>>();
  // While a checkpoint is saved or loaded: by place in the prepared optimizers; nullptr for those that are whole.
  std::vector<std::unique_ptr<torch::optim::Optimizer>> whole_optimizers_;
  checkpoint::DividedTensors divided_;  // what this rank has of them and of divided models
};

}  // namespace accel::detail
