#include <algorithm>
#include <charconv>
#include <string_view>
#include <tuple>
#include <utility>

#include <ATen/ops/full.h>
#include <torch/nn/module.h>

#include <accel/accelerator.h>
#include <accel/env_contract.h>
#include <accel/error.h>

#include "libaccel/api/accelerator/accelerator_impl.h"
#include "libaccel/api/accelerator/model_runtime.h"
#include "libaccel/engine/checkpoint/files/target_folder.h"
#include "libaccel/engine/checkpoint/memory/memory_checkpoints.h"
#include "libaccel/engine/checkpoint/series/background_save.h"
#include "libaccel/engine/checkpoint/series/total_limit.h"
#include "libaccel/engine/gradients/ddp_reducer.h"
#include "libaccel/engine/homes/empty_ranks.h"
#include "libaccel/engine/homes/page_budget.h"
#include "libaccel/engine/process/agreement.h"
#include "libaccel/engine/process/freed_memory.h"
#include "libaccel/engine/process/process_group.h"
#include "libaccel/engine/settings/deepspeed_options.h"
#include "libaccel/engine/settings/settings_agreement.h"
#include "libaccel/engine/settings/zero_settings.h"
#include "libaccel/engine/sharding/sharded_model.h"
#include "libaccel/engine/sharding/sharded_optimizer.h"
#include "libaccel/engine/sharding/undivided_state.h"
#include "libaccel/engine/sharding/whole_gradient_model.h"
#include "libaccel/engine/sharding/widened_parameters.h"

namespace accel {
namespace {

int accumulation_steps_from_env(int fallback) {
  constexpr std::string_view kName = "ACCELERATE_GRADIENT_ACCUMULATION_STEPS";
  const std::optional<std::string> text = process_env()(kName);
  if (!text || text->empty()) return fallback;
  int steps = 0;
  const auto [end, error] = std::from_chars(text->data(), text->data() + text->size(), steps);
  if (error != std::errc() || end != text->data() + text->size() || steps < 1) {
    throw Error(ErrorCode::kEnvInvalid,
                std::string(kName) + " is '" + *text + "', expected a whole number of at least 1");
  }
  return steps;
}

GradientAccumulationPlugin accumulation_plugin(const AcceleratorOptions& options) {
  if (options.gradient_accumulation_plugin) {
    if (options.gradient_accumulation_steps != 1) {
      throw Error(ErrorCode::kInvalidArgument,
                  "both gradient_accumulation_steps and gradient_accumulation_plugin are set",
                  "set num_steps in the plugin, or leave the plugin out");
    }
    return *options.gradient_accumulation_plugin;
  }
  // Only a plugin asks for adjust_scheduler; with the number alone the peer's schedules stand still.
  return {.num_steps = accumulation_steps_from_env(options.gradient_accumulation_steps),
          .adjust_scheduler = false};
}

void check_steps(int steps) {
  if (steps >= 1) return;
  throw Error(ErrorCode::kInvalidArgument,
              "gradient_accumulation_steps is " + std::to_string(steps) + ", expected at least 1");
}

std::optional<sharding::FsdpSettings> fsdp_settings(const AcceleratorOptions& options) {
  if (options.fsdp_plugin && options.deepspeed_plugin) {
    throw Error(ErrorCode::kInvalidArgument,
                "both fsdp_plugin and deepspeed_plugin are set",
                "leave one of them out");
  }
  const EnvLookup env = process_env();
  if (wants_deepspeed(options, env)) {
    return sharding::resolve_zero(options.deepspeed_plugin.value_or(DeepSpeedPlugin{}), env);
  }
  if (!options.fsdp_plugin && !sharding::environment_wants_fsdp(env)) return std::nullopt;
  return sharding::resolve(options.fsdp_plugin.value_or(FullyShardedDataParallelPlugin{}), env);
}

ProjectConfiguration project_of(const AcceleratorOptions& options) {
  ProjectConfiguration project = options.project_config;
  if (!options.project_dir.empty()) project.project_dir = options.project_dir;
  if (project.logging_dir.empty()) project.logging_dir = project.project_dir;
  return project;
}

// Read whatever becomes of it: a mistake shows on one node, too. Requires: every rank calls it.
bool has_page_budget(const sharding::FsdpSettings& settings, ProcessGroup* group) {
  bool has_budget = false;
  const auto read = [&] {
    has_budget = sharding::page_budget(settings.paging.max_live_bytes, process_env()).has_value();
  };
  jointly(read, group, "asking whether every rank can read its budget of pages");
  return has_budget;
}

bool has_trainable_parameters(const torch::nn::Module& module) {
  const std::vector<at::Tensor> parameters = module.parameters();
  return std::any_of(parameters.begin(), parameters.end(), [](const at::Tensor& parameter) {
    return parameter.requires_grad();
  });
}

}  // namespace

Accelerator::Impl::Impl(const AcceleratorOptions& given)
    : Impl(read_deepspeed_options(given, process_env())) {}

Accelerator::Impl::Impl(DeepSpeedOptions read)
    : options(std::move(read.options)),
      fsdp(fsdp_settings(options)),
      project(project_of(options)),
      state({.mixed_precision = options.mixed_precision,
             .cpu = options.cpu,
             .use_fsdp = fsdp.has_value(),
             .use_deepspeed = wants_deepspeed(options, process_env()),
             .init_process_group = options.init_process_group}),
      gradient_state(accumulation_plugin(options)) {
  check_steps(gradient_state.num_steps());
  sharding::set_loads_on_main_only(fsdp);
  for (const std::string& notice : read.notices) logger.info(notice);
  if (fsdp) {
    for (const std::string& notice : fsdp->notices) logger.info(notice);
  }
  if (state.mixed_precision() == PrecisionType::kFp16 && options.grad_scaler.enabled) {
    scaler = std::make_shared<GradScaler>(options.grad_scaler, state.device());
  }
  checkpoint::check_total_limit(project.total_limit);
  if (!project.project_dir.empty()) {
    checkpoint_folder = checkpoint::absolute_name(project.project_dir) / "checkpoints";
  }
  if (project.memory_checkpoint_every < 0) {
    throw Error(ErrorCode::kInvalidArgument,
                "memory_checkpoint_every is " + std::to_string(project.memory_checkpoint_every) +
                    ", expected 0 (never) or a number of steps");
  }
  set_up_preemption();
}

// Loaders may outlive this object.
Accelerator::Impl::~Impl() {
  for (const auto& loader : data_loaders) loader->set_on_boundary({});
}

Accelerator::Accelerator(const AcceleratorOptions& options)
    : impl_(std::make_unique<Impl>(options)) {}
Accelerator::~Accelerator() = default;
Accelerator::Accelerator(Accelerator&&) noexcept = default;
Accelerator& Accelerator::operator=(Accelerator&&) noexcept = default;

std::shared_ptr<detail::ModelRuntime> Accelerator::runtime_for(
    std::shared_ptr<torch::nn::Module> module) {
  if (module == nullptr) {
    throw Error(ErrorCode::kInvalidArgument,
                "prepare() got a module holder without a module",
                "construct the model before prepare()");
  }
  for (const auto& known : impl_->models) {
    if (known->module() == module) return known;
  }
  if (impl_->options.device_placement && !sharding::is_empty(*module)) module->to(device());
  std::optional<AutocastOptions> autocast;
  if (mixed_precision() != PrecisionType::kNo) autocast = autocast_options();
  std::shared_ptr<ModelSync> sync;
  std::shared_ptr<ProcessGroup> group = impl_->state.process_group();
  if (group != nullptr && group->size() > 1) sharding::verify_same_settings(impl_->fsdp, *group);
  sharding::refuse_empty_models(*module, group.get(), impl_->fsdp);
  // On one process too: its checkpoints are those of several.
  if (sharding::widens(impl_->fsdp, mixed_precision())) sharding::widen_parameters(*module);
  const bool has_budget = impl_->fsdp && has_page_budget(*impl_->fsdp, group.get());
  if (group != nullptr && group->size() > 1) {
    if (has_trainable_parameters(*module)) {
      sync = impl_->make_sync(*module, std::move(group));
    } else if (impl_->fsdp && impl_->fsdp->strategy != ShardingStrategy::kNoShard) {
      sharding::send_frozen_model(*module, *impl_->fsdp, *group);
    }
  }
  const auto divided = std::dynamic_pointer_cast<sharding::ShardedModel>(sync);
  if (impl_->fsdp && impl_->fsdp->has_precision() && divided == nullptr) {
    impl_->logger.warning_once(
        "mixed_precision_policy changes nothing where a model is not divided: with one process, or "
        "NO_SHARD");
  }
  if (has_budget && (divided == nullptr || !divided->is_paged())) {
    impl_->logger.warning_once(
        "max_live_bytes (ACCEL_FSDP_MAX_LIVE_BYTES) changes nothing here: units come and go with "
        "FULL_SHARD over several nodes");
  }
  if (has_trainable_parameters(*module)) keep_freed_memory();
  impl_->models.push_back(
      std::make_shared<detail::ModelRuntime>(std::move(module), std::move(sync), autocast));
  return impl_->models.back();
}

std::shared_ptr<ModelSync> Accelerator::Impl::make_sync(const torch::nn::Module& module,
                                                        std::shared_ptr<ProcessGroup> world) {
  if (mesh == nullptr) {
    const MeshShape shape = sharding::mesh_shape(fsdp, *world);
    mesh = std::make_shared<Mesh>(std::move(world), shape);
  }
  if (!fsdp || fsdp->strategy == ShardingStrategy::kNoShard)
    return std::make_shared<DdpReducer>(module, mesh->group(MeshAxis::kData), options.ddp);
  if (fsdp->keeps_whole_gradients)
    return std::make_shared<sharding::WholeGradientModel>(module, mesh, *fsdp, options.ddp);
  return std::make_shared<sharding::ShardedModel>(module, mesh, *fsdp);
}

AcceleratedOptimizer Accelerator::prepare_optimizer(
    std::shared_ptr<torch::optim::Optimizer> optimizer) {
  for (const AcceleratedOptimizer& known : impl_->optimizers) {
    if (&known.optimizer() == optimizer.get()) return known;
  }
  impl_->optimizers.emplace_back(std::move(optimizer), impl_->scaler);
  if (impl_->fsdp && impl_->fsdp->gradient_clipping)
    impl_->optimizers.back().set_clipping(*impl_->fsdp->gradient_clipping);
  match_optimizers();
  const AcceleratedOptimizer& prepared = impl_->optimizers.back();
  for (const AcceleratedScheduler& waiting : impl_->unmatched) {
    if (waiting.scheduler().optimizer() == &prepared.optimizer())
      waiting.set_optimizers({prepared});
  }
  return prepared;
}

void Accelerator::match_optimizers() {
  const auto models = impl_->sharded_models();
  if (models.empty()) return;
  for (const AcceleratedOptimizer& prepared : impl_->optimizers) {
    prepared.set_gate(sharding::ShardedOptimizer::rewrite(
        prepared.optimizer(),
        std::dynamic_pointer_cast<sharding::ShardedOptimizer>(prepared.gate()),
        models));
  }
}

std::vector<std::shared_ptr<sharding::ShardedModel>> Accelerator::Impl::sharded_models() const {
  std::vector<std::shared_ptr<sharding::ShardedModel>> sharded;
  for (const auto& model : models) {
    if (auto own = std::dynamic_pointer_cast<sharding::ShardedModel>(model->sync())) {
      sharded.push_back(std::move(own));
    }
  }
  return sharded;
}

AcceleratedScheduler Accelerator::prepare_scheduler(std::shared_ptr<Scheduler> scheduler) {
  AcceleratedScheduler prepared = add_scheduler(std::move(scheduler));
  match_schedulers();
  return prepared;
}

AcceleratedScheduler Accelerator::add_scheduler(std::shared_ptr<Scheduler> scheduler) {
  for (const AcceleratedScheduler& known : impl_->schedulers) {
    if (&known.scheduler() == scheduler.get()) return known;
  }
  impl_->schedulers.emplace_back(
      std::move(scheduler),
      std::vector<AcceleratedOptimizer>{},
      AcceleratedSchedulerOptions{impl_->options.step_scheduler_with_optimizer,
                                  impl_->options.dataloader_config.split_batches});
  impl_->unmatched.push_back(impl_->schedulers.back());
  return impl_->schedulers.back();
}

void Accelerator::add_custom_object(Stateful& object) {
  impl_->custom_objects.push_back(&object);
}

void Accelerator::note_move(const void* from, std::shared_ptr<torch::optim::Optimizer> to) {
  impl_->moved_optimizers.emplace_back(from, std::move(to));
}

// A scheduler waits for the optimizer that it was made for, and for all of them when that is unknown, or still to be prepared
// by a later call.
void Accelerator::match_schedulers() {
  std::vector<AcceleratedScheduler> waiting;
  for (const AcceleratedScheduler& prepared : impl_->unmatched) {
    Scheduler& scheduler = prepared.scheduler();
    for (const auto& [from, to] : impl_->moved_optimizers) {
      if (scheduler.optimizer() == from) scheduler.rebind(*to);
    }
    std::vector<AcceleratedOptimizer> own;
    for (const AcceleratedOptimizer& optimizer : impl_->optimizers) {
      if (&optimizer.optimizer() == scheduler.optimizer()) own.push_back(optimizer);
    }
    if (own.empty() && scheduler.optimizer() != nullptr) waiting.push_back(prepared);
    prepared.set_optimizers(own.empty() ? impl_->optimizers : std::move(own));
  }
  impl_->unmatched = std::move(waiting);
  impl_->moved_optimizers.clear();
}

void Accelerator::free_memory() {
  impl_->models.clear();
  impl_->optimizers.clear();
  impl_->schedulers.clear();
  impl_->unmatched.clear();
  for (const auto& loader : impl_->data_loaders) loader->set_on_boundary({});
  impl_->data_loaders.clear();
  impl_->custom_objects.clear();
  impl_->batch_count = 0;
  checkpoint::background_saves().release_copies();
}

bool Accelerator::next_batch_syncs() {
  const GradientState& gradients = impl_->gradient_state;
  const bool ends_loader = gradients.sync_with_dataloader() && gradients.end_of_dataloader();
  impl_->batch_count = ends_loader ? 0 : impl_->batch_count + 1;
  const bool syncs = ends_loader || impl_->batch_count % gradients.num_steps() == 0;
  gradients.set_sync_gradients(syncs);
  return syncs || (gradients.sync_each_batch() && use_distributed());
}

bool Accelerator::sync_gradients() const {
  return impl_->gradient_state.sync_gradients();
}

int Accelerator::gradient_accumulation_steps() const {
  return impl_->gradient_state.num_steps();
}

void Accelerator::set_gradient_accumulation_steps(int steps) {
  check_steps(steps);
  const GradientState& now = impl_->gradient_state;
  impl_->gradient_state = GradientState({.num_steps = steps,
                                         .adjust_scheduler = now.adjust_scheduler(),
                                         .sync_with_dataloader = now.sync_with_dataloader(),
                                         .sync_each_batch = now.sync_each_batch()});
}

AutocastOptions Accelerator::autocast_options() const {
  return {.device_type = device().type(),
          .dtype = mixed_precision() == PrecisionType::kFp16 ? at::kHalf : at::kBFloat16,
          .enabled = impl_->options.autocast.enabled && mixed_precision() != PrecisionType::kNo,
          .cache_enabled = impl_->options.autocast.cache_enabled};
}

Autocast Accelerator::autocast() const {
  return autocast(impl_->options.autocast);
}

Autocast Accelerator::autocast(const AutocastKwargs& options) const {
  impl_->has_autocast = true;
  AutocastOptions scope = autocast_options();
  scope.enabled = options.enabled && mixed_precision() != PrecisionType::kNo;
  scope.cache_enabled = options.cache_enabled;
  return Autocast(scope);
}

GradScaler* Accelerator::scaler() const noexcept {
  return impl_->scaler.get();
}

void Accelerator::set_trigger() {
  impl_->trigger = at::full({}, 1, at::TensorOptions(at::kLong).device(device()));
}

bool Accelerator::check_trigger() {
  at::Tensor raised = impl_->trigger.defined()
                          ? impl_->trigger
                          : at::full({}, 0, at::TensorOptions(at::kLong).device(device()));
  if (const std::shared_ptr<ProcessGroup> group = impl_->state.process_group()) {
    group->all_reduce_(raised, Reduction::kMax, "check_trigger");
  }
  impl_->trigger.reset();
  return raised.item<std::int64_t>() != 0;
}

ShardOptions Accelerator::shard_options() const {
  const DataLoaderConfiguration& config = impl_->options.dataloader_config;
  ShardOptions shard;
  shard.split_batches = config.split_batches;
  shard.even_batches = config.even_batches;
  shard.dispatch_batches = config.dispatch_batches;
  shard.use_seedable_sampler = config.use_seedable_sampler;
  shard.data_seed = config.data_seed;
  if (impl_->options.device_placement) shard.device = device();
  shard.rng_types = impl_->options.rng_types;
  return shard;
}

void Accelerator::add_data_loader(std::shared_ptr<DataLoaderBase> loader) {
  auto& known = impl_->data_loaders;
  if (std::find(known.begin(), known.end(), loader) == known.end()) {
    if (impl_->wants_boundaries()) {
      loader->set_on_boundary([impl = impl_.get()] { impl->reach_boundary(); });
    }
    known.push_back(std::move(loader));
  }
}

void Accelerator::warn_of_join() const {
  if (!use_distributed()) return;
  impl_->logger.warning_once(
      "join_uneven_inputs has no effect: joining is only supported for DDP on several GPUs");
}

std::optional<std::int64_t> Accelerator::samples_of_last_batch() const {
  const GradientState& gradients = impl_->gradient_state;
  const bool at_end = gradients.end_of_dataloader();
  const std::int64_t remainder = gradients.remainder();
  if (at_end && remainder == -1) {
    impl_->logger.info(
        "the dataset has no known length: gather_for_metrics() keeps what was repeated to fill the "
        "last batch");
  }
  return rows_to_keep(at_end, remainder);
}

const AcceleratorState& Accelerator::state() const noexcept {
  return impl_->state;
}
const GradientState& Accelerator::gradient_state() const noexcept {
  return impl_->gradient_state;
}

const ProjectConfiguration& Accelerator::project_configuration() const noexcept {
  return impl_->project;
}
const std::string& Accelerator::project_dir() const noexcept {
  return impl_->project.project_dir;
}
const std::string& Accelerator::logging_dir() const noexcept {
  return impl_->project.logging_dir;
}

void Accelerator::end_training() {
  try {
    std::ignore = impl_->finish_save();
    const bool is_on_several_nodes =
        impl_->state.local_num_processes() < impl_->state.num_processes();
    // Others may still fetch this rank's parameters: one that evaluates alone.
    if (is_on_several_nodes && !impl_->sharded_models().empty()) impl_->state.wait_for_everyone();
  } catch (...) {
    impl_->state.destroy_process_group();
    throw;
  }
  impl_->state.destroy_process_group();
}

}  // namespace accel
