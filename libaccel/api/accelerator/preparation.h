// Preparation: the options of an Accelerator, the state of its process, and what was prepared with it.
//
// Matches what belongs together, whichever was prepared first. Others read the members, and change none.
//
// Threads:  the thread that trains; every rank prepares the same objects in the same order.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <torch/optim/optimizer.h>

#include <accel/accelerator_options.h>
#include <accel/detail/dataloader_base.h>
#include <accel/logging.h>
#include <accel/optim.h>
#include <accel/state.h>

#include "libaccel/api/accelerator/deepspeed_setup.h"
#include "libaccel/api/accelerator/model_runtime.h"
#include "libaccel/engine/gradients/gradient_hooks.h"
#include "libaccel/engine/optim/step_gate.h"
#include "libaccel/engine/precision/precision_recipe.h"
#include "libaccel/engine/process/mesh.h"
#include "libaccel/engine/settings/deepspeed_options.h"
#include "libaccel/engine/settings/fsdp_settings.h"

namespace accel::sharding {
class ShardedModel;
class ShardedOptimizer;
}  // namespace accel::sharding

namespace accel::detail {

// As the options, and where they leave it out the environment, say. Throws kInvalidArgument, kEnvInvalid.
[[nodiscard]] GradientAccumulationPlugin accumulation_plugin(const AcceleratorOptions& options);

// Of activation_checkpointing: the units of the wrap policy, but for what is in no wrapped module; and what they keep.
[[nodiscard]] recompute::UnitOfParameter recomputed_units(const torch::nn::Module& module,
                                                          const sharding::FsdpSettings& settings);
[[nodiscard]] std::optional<KeptOperators> kept_operators(const sharding::FsdpSettings& settings);

class Preparation {
 public:
  // Joins the other ranks. Throws what AcceleratorState throws, kInvalidArgument and kEnvInvalid for options.
  explicit Preparation(const AcceleratorOptions& given);
  ~Preparation();
  Preparation(const Preparation&) = delete;
  Preparation& operator=(const Preparation&) = delete;

  // The runtime of a module, made at the first call for it.
  std::shared_ptr<ModelRuntime> runtime_for(std::shared_ptr<torch::nn::Module> module,
                                            const PrepareModelOptions& asked);
  AcceleratedOptimizer add_optimizer(std::shared_ptr<torch::optim::Optimizer> optimizer);
  AcceleratedScheduler add_scheduler(std::shared_ptr<Scheduler> scheduler);
  // Of DeepSpeed's file; the scheduler follows the optimizer that was prepared last.
  AcceleratedOptimizer add_optimizer(const DummyOptim& dummy);
  AcceleratedScheduler add_scheduler(const DummyScheduler& dummy);
  // on_boundary: called when a loop is done with a batch; may be empty.
  void add_data_loader(std::shared_ptr<DataLoaderBase> loader,
                       const std::function<void()>& on_boundary);
  // Optimizers of divided models get their pieces.
  void match_optimizers();
  void match_schedulers();
  // Forgets all of them.
  void clear();

  // As the Accelerator's.
  void select_deepspeed_plugin(const std::string& name);
  [[nodiscard]] const DeepSpeedPlugin& deepspeed_plugin() const;
  [[nodiscard]] const DeepSpeedPlugin& deepspeed_plugin(const std::string& name) const {
    return deepspeed_.plugin(name);
  }
  [[nodiscard]] std::string deepspeed_config(std::int64_t gradient_accumulation_steps) const;

  // device_placement: not set: that of the options.
  [[nodiscard]] ShardOptions shard_options(std::optional<bool> device_placement) const;
  // Over which the batches of a step are counted: a step of reproducible training has as many on any number.
  [[nodiscard]] int sharing_processes() const;
  // Throws as Accelerator::set_state_dict_type().
  void set_state_dict_type(StateDictType type);
  [[nodiscard]] std::vector<torch::nn::Module*> modules() const;
  // How the ranks keep those models in step that are divided over them.
  [[nodiscard]] std::vector<std::shared_ptr<ModelSync>> divided_models() const;
  // The ranks by what divides models. Requires: a model was prepared that several ranks train.
  [[nodiscard]] Mesh& mesh() const noexcept { return *mesh_; }
  // Of an optimizer whose state is divided over the ranks; else nullptr.
  [[nodiscard]] static StepGate* gate_of(const AcceleratedOptimizer& optimizer) {
    return optimizer.gate().get();
  }
  // Where loads put states of an optimizer that does not keep them in memory; else nullptr.
  [[nodiscard]] static StatePlaces* state_places(const AcceleratedOptimizer& optimizer) {
    return optimizer.state_places();
  }

  AcceleratorOptions options;
  bool is_reproducible;
  std::optional<ParallelismConfig> parallelism;
  std::optional<sharding::FsdpSettings> fsdp;
  PrecisionRecipe recipe;
  AcceleratorState state;
  std::optional<DeviceMesh> device_mesh;  // of parallelism
  Logger logger = get_logger("accel.accelerator");
  std::shared_ptr<GradScaler> scaler;  // nullptr unless fp16
  std::vector<std::shared_ptr<ModelRuntime>> models;
  std::vector<AcceleratedOptimizer> optimizers;
  std::vector<AcceleratedScheduler> schedulers;
  std::vector<std::shared_ptr<DataLoaderBase>> data_loaders;
  // Of the prepare() that is running, the optimizers that it took over, by where they were: schedulers made for them follow.
  std::vector<std::pair<const void*, std::shared_ptr<torch::optim::Optimizer>>> moved_optimizers;

 private:
  Preparation(const AcceleratorOptions& given, DeepSpeedOptions read);
  AcceleratedOptimizer keep_optimizer(std::shared_ptr<torch::optim::Optimizer> optimizer);
  AcceleratedScheduler keep_scheduler(std::shared_ptr<Scheduler> scheduler, bool split_batches);
  // Of the loaders, for one process; std::nullopt: none says it.
  [[nodiscard]] std::optional<std::int64_t> micro_batch_size() const;
  // The first one makes the mesh. device: where a model that is divided is put.
  [[nodiscard]] std::shared_ptr<ModelSync> make_sync(const torch::nn::Module& module,
                                                     std::shared_ptr<ProcessGroup> world,
                                                     std::optional<c10::Device> device);
  // Then one process divides its models too: into one shard.
  [[nodiscard]] bool keeps_parameters_on_disk() const noexcept;
  [[nodiscard]] const std::shared_ptr<ProcessGroup>& group_of_this_process();
  void warn_of_options_without_effect(const ModelSync* sync, bool has_page_budget) const;
  // Throws kUnsupported where gradients are not complete in the backward.
  void step_in_backward(const AcceleratedOptimizer& optimizer);
  // Optimizers that step in the backward hear of the gradients of divided models.
  void tell_gradients();

  DeepSpeedSetup deepspeed_;
  std::shared_ptr<ProcessGroup> own_group_;  // nullptr: nobody has asked for it
  std::shared_ptr<Mesh> mesh_;
  std::vector<std::shared_ptr<sharding::ShardedModel>> sharded_models_;  // of some models
  // By place in optimizers; nullptr: it steps whole parameters.
  std::vector<std::shared_ptr<sharding::ShardedOptimizer>> sharded_optimizers_;
  std::vector<std::unique_ptr<GradientHooks>>
      landing_;  // on one process, of optimizers that step in the backward
  std::vector<std::function<void(const at::Tensor& parameter, const at::Tensor& gradient)>>
      on_gradient_;  // of optimizers that step in the backward, on several processes
  std::vector<AcceleratedScheduler> unmatched_;  // whose optimizers were not prepared yet
};

}  // namespace accel::detail
