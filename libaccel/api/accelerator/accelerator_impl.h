// Accelerator::Impl: the members of an Accelerator, shared by the sources that implement it.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/optim/optimizer.h>

#include <accel/accelerator.h>
#include <accel/async_save.h>
#include <accel/checkpoint.h>
#include <accel/logging.h>

#include "libaccel/api/accelerator/model_runtime.h"
#include "libaccel/api/accelerator/preemption.h"
#include "libaccel/engine/process/mesh.h"
#include "libaccel/engine/settings/fsdp_settings.h"
#include "libaccel/engine/sharding/master_shards.h"
#include "libaccel/tensors/divided_tensors.h"

namespace accel {

struct DeepSpeedOptions;

namespace checkpoint {
class MemoryCheckpoints;
class MemoryKeeper;
}  // namespace checkpoint
namespace sharding {
class ShardedModel;
class ShardedOptimizer;
}  // namespace sharding

struct Accelerator::Impl {
  explicit Impl(const AcceleratorOptions& options);
  explicit Impl(DeepSpeedOptions read);
  ~Impl();

  // This rank's generators, and where it stands in an accumulation.
  class RandomStates final : public Stateful {
   public:
    explicit RandomStates(Impl& owner) : owner_(owner) {}
    [[nodiscard]] StateDict state_dict() const override;
    void load_state_dict(const StateDict& state) override;

   private:
    Impl& owner_;
  };

  // The numbered checkpoints of the project. Throws kInvalidArgument without a project_dir.
  CheckpointSeries& checkpoint_series();
  // Tells the supervisor, when there is one, of the checkpoint that was just saved.
  void commit(CheckpointInfo& checkpoint);
  // What a checkpoint holds, with whole optimizers in place of sharded ones; see whole_optimizer.h. To save, the ranks agree
  // on which states there are: every rank calls it.
  enum class SaveTo { kDisk, kMemory };
  [[nodiscard]] CheckpointObjects objects_to_save(SaveTo to);
  // With the parameters in full precision while `save` runs. Every rank calls it.
  void with_objects_to_save(SaveTo to, const std::function<void(const CheckpointObjects&)>& save);
  [[nodiscard]] CheckpointObjects objects_to_load();
  [[nodiscard]] CheckpointObjects checkpoint_objects();
  [[nodiscard]] static const std::shared_ptr<detail::StepGate>& gate_of(
      const AcceleratedOptimizer& optimizer);
  // Runs `load`, which writes to parameters, and gives sharded optimizers what it loaded. Every rank calls it.
  using Load = std::function<std::optional<LoadReport>(const CheckpointObjects&)>;
  std::optional<LoadReport> load(const Load& load);
  void take_loaded_states(const std::vector<std::shared_ptr<sharding::ShardedModel>>& models);
  // Whether several nodes write a folder each: then no file can be made of the parts of all ranks.
  [[nodiscard]] bool saves_on_several_nodes() const;
  // Whether files of sharded models are written by one rank, from wholes.
  [[nodiscard]] bool writes_wholes() const;
  // What this rank does with optimizers' states that are gathered for a save, and which parameters it has in full precision
  // meanwhile; the latter also while it loads. Every rank calls them.
  [[nodiscard]] sharding::Wholes wholes_to_save(SaveTo to) const;
  struct Exposed {
    sharding::Exposure exposure = sharding::Exposure::kUndivided;
    std::vector<at::Tensor> asked;  // of kAsked
  };
  [[nodiscard]] Exposed parameters_to_save(SaveTo to) const;
  [[nodiscard]] Exposed parameters_to_load() const;
  // Those that hooks or registered objects, where they are called here, may look at.
  enum class Callers { kNone, kObjects, kHooksAndObjects };
  [[nodiscard]] std::vector<at::Tensor> parameters_seen_by(Callers callers) const;
  // Of all sharded models.
  [[nodiscard]] std::vector<at::Tensor> divided_parameters() const;
  // Trained parameters of copies (DDP), and the states that optimizers have of them.
  [[nodiscard]] std::vector<at::Tensor> replicas() const;
  // Lets each rank of a node keep its share of those, where the ranks have the same. Every rank calls it.
  void share_replicas();
  // What parameters_seen_by() says, which runs the user's code: what it throws is thrown on all ranks. std::nullopt: no model
  // has masters, or no rank looks at any. Every rank calls it.
  [[nodiscard]] std::optional<std::vector<at::Tensor>> masters_to_show(Callers callers) const;
  // And for a view of the state.
  [[nodiscard]] sharding::Wholes wholes_to_view(const StateDictConfig& config) const;
  [[nodiscard]] SaveOptions save_options() const;
  // Accelerator::save_state().
  CheckpointInfo save(const std::filesystem::path& folder);
  // Accelerator::async_save_state() and wait_for_save().
  void begin_save(const std::filesystem::path& folder);
  std::optional<CheckpointInfo> finish_save();
  // nullptr where a rank has no supervisor. Every rank calls it.
  [[nodiscard]] checkpoint::MemoryCheckpoints* memory_checkpoints();
  // Accelerator::save_state_in_memory().
  bool save_in_memory();
  // Whether this job has begun before: after a crash, or with other nodes, which counts as no restart. Every rank calls it.
  [[nodiscard]] bool is_restarted();
  // Takes the memory that memory_checkpoint_every needs before the first step. Every rank calls it.
  void reserve_memory();
  // std::nullopt: there is none, with a notice when one was to be expected. Every rank calls it.
  enum class DiskCounts { kYes, kNo };  // whether a newer checkpoint of the project goes before it
  [[nodiscard]] std::optional<LoadReport> load_from_memory(DiskCounts disk);
  // The newest complete checkpoint of the project; number -1: none. As rank 0 sees it. Every rank calls it.
  struct OnDisk {
    std::int64_t number = -1;
    std::int64_t generation = 0;
  };
  [[nodiscard]] OnDisk newest_checkpoint();

  // Errors  kInvalidArgument for options that cannot be met.
  void set_up_preemption();
  // Whether reach_boundary() has something to do.
  [[nodiscard]] bool wants_boundaries() const {
    return preemption.has_value() || project.memory_checkpoint_every > 0;
  }
  // A prepared loader's loop is done with a batch.
  void reach_boundary();
  [[noreturn]] void save_and_exit();

  // Of the models that are divided over the ranks.
  [[nodiscard]] std::vector<std::shared_ptr<sharding::ShardedModel>> sharded_models() const;
  // How the ranks keep a model in step.
  [[nodiscard]] std::shared_ptr<ModelSync> make_sync(const torch::nn::Module& module,
                                                     std::shared_ptr<ProcessGroup> world);
  // Settles them and looks their pieces up: what stands for `parameters` on this rank, and those that are whole.
  struct OwnGradients {
    std::shared_ptr<sharding::ShardedModel> any;  // nullptr: no model is divided
    std::vector<at::Tensor> pieces;
    std::vector<at::Tensor> whole;
  };
  [[nodiscard]] OwnGradients own_gradients(const std::vector<at::Tensor>& parameters) const;

  AcceleratorOptions options;
  std::optional<sharding::FsdpSettings> fsdp;
  ProjectConfiguration project;
  std::filesystem::path checkpoint_folder;  // of the project, absolute; empty: there is none
  AcceleratorState state;
  std::shared_ptr<Mesh> mesh;  // made for the first model that several ranks train
  GradientState gradient_state;
  Logger logger = get_logger("accel.accelerator");
  std::shared_ptr<GradScaler> scaler;
  std::int64_t batch_count = 0;  // since the last end of a loader
  std::int64_t num_batches = 0;  // backward() calls since training began, restarts included
  bool has_autocast = false;     // the program has called autocast()
  at::Tensor trigger;            // 0-d int64: 1 after set_trigger()

  std::vector<std::shared_ptr<detail::ModelRuntime>> models;
  std::vector<AcceleratedOptimizer> optimizers;
  // While a checkpoint is saved or loaded: those of sharded optimizers, by place in `optimizers`; nullptr for others.
  std::vector<std::unique_ptr<torch::optim::Optimizer>> whole_optimizers;
  checkpoint::DividedTensors divided;  // what this rank has of them and of sharded models
  std::vector<AcceleratedScheduler> schedulers;
  std::vector<std::shared_ptr<DataLoaderBase>> data_loaders;
  std::vector<Stateful*> custom_objects;
  // Shared with the handles that remove them.
  std::shared_ptr<detail::StateHooks> save_hooks = std::make_shared<detail::StateHooks>();
  std::shared_ptr<detail::StateHooks> load_hooks = std::make_shared<detail::StateHooks>();
  RandomStates random_states{*this};
  std::optional<CheckpointSeries> checkpoints;  // made at the first save or load
  bool has_gone_on = false;         // from memory, also in a generation that counts as no restart
  std::optional<AsyncSave> saving;  // until somebody has asked for its end
  std::optional<detail::Preemption> preemption;  // when it is to save and exit
  std::int64_t boundary_batch = 0;               // num_batches at the last boundary
  int steps_since_memory = 0;                    // boundaries since the last in-memory checkpoint
  std::unique_ptr<checkpoint::MemoryKeeper> memory_keeper;
  std::unique_ptr<checkpoint::MemoryCheckpoints> memory;  // made at the first use
  bool looked_for_memory = false;
  std::optional<OnDisk> newest_on_disk;  // newest_checkpoint(), as long as it holds

  std::vector<AcceleratedScheduler> unmatched;  // whose optimizers were not prepared yet
  // Of the prepare() that is running.
  std::vector<std::pair<const void*, std::shared_ptr<torch::optim::Optimizer>>> moved_optimizers;
};

}  // namespace accel
