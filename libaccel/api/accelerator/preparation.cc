#include "libaccel/api/accelerator/preparation.h"

#include <algorithm>
#include <string>
#include <string_view>
#include <utility>

#include <torch/nn/module.h>

#include <accel/activation_checkpoint.h>
#include <accel/env_contract.h>
#include <accel/error.h>
#include <accel/lomo.h>
#include <accel/script_module.h>

#include "libaccel/api/accelerator/reproducible_steps.h"
#include "libaccel/engine/gradients/communication_hooks.h"
#include "libaccel/engine/gradients/ddp_reducer.h"
#include "libaccel/engine/homes/empty_ranks.h"
#include "libaccel/engine/homes/page_budget.h"
#include "libaccel/engine/pager/weight_file.h"
#include "libaccel/engine/precision/slow_bf16.h"
#include "libaccel/engine/process/agreement.h"
#include "libaccel/engine/process/freed_memory.h"
#include "libaccel/engine/process/process_group.h"
#include "libaccel/engine/settings/parallelism_settings.h"
#include "libaccel/engine/settings/settings_agreement.h"
#include "libaccel/engine/settings/zero_settings.h"
#include "libaccel/engine/sharding/sharded_model.h"
#include "libaccel/engine/sharding/sharded_optimizer.h"
#include "libaccel/engine/sharding/undivided_state.h"
#include "libaccel/engine/sharding/whole_gradient_model.h"
#include "libaccel/engine/sharding/widened_parameters.h"
#include "libaccel/engine/sharding/wrap_policy.h"
#include "runtime/text/number_text.h"
#include "runtime/unserved_variables.h"

namespace accel::detail {
namespace {

std::optional<sharding::FsdpSettings> fsdp_settings(
    const AcceleratorOptions& options, const std::optional<ParallelismConfig>& parallelism) {
  if (options.fsdp_plugin && options.deepspeed_plugin) {
    throw Error(ErrorCode::kInvalidArgument,
                "both fsdp_plugin and deepspeed_plugin are set",
                "leave one of them out");
  }
  const EnvLookup env = process_env();
  if (wants_deepspeed(options, env)) {
    return sharding::resolve_zero(options.deepspeed_plugin.value_or(DeepSpeedPlugin{}), env);
  }
  return sharding::resolve_fsdp(options.fsdp_plugin, parallelism, env);
}

sharding::Divides what_divides(const AcceleratorOptions& options,
                               const std::optional<sharding::FsdpSettings>& fsdp) {
  if (wants_deepspeed(options, process_env())) return sharding::Divides::kByZero;
  return fsdp && fsdp->strategy != ShardingStrategy::kNoShard ? sharding::Divides::kByFsdp
                                                              : sharding::Divides::kNothing;
}

// Python's libraries of fp8 are told by variables; here a recipe would be a wish without effect.
void refuse_fp8_recipe(const std::optional<Fp8Recipe>& recipe) {
  if (!recipe) return;
  throw Error(ErrorCode::kUnsupported,
              "fp8_recipe is set (" + std::string(to_string(fp8_backend(*recipe))) +
                  "), and mixed precision fp8 is not part of this build",
              "use bf16; fp8_environment() gives Python workers the recipe");
}

int accumulation_steps_from_env(int fallback) {
  constexpr std::string_view kName = "ACCELERATE_GRADIENT_ACCUMULATION_STEPS";
  const std::optional<std::string> text = process_env()(kName);
  if (!text || text->empty()) return fallback;
  const std::optional<int> steps = number_of<int>(*text);
  if (!steps || *steps < 1) {
    throw Error(ErrorCode::kEnvInvalid,
                std::string(kName) + " is '" + *text + "', expected a whole number of at least 1");
  }
  return *steps;
}

// What a plugin comes to without a file.
std::string config_without_file(const sharding::FsdpSettings& settings) {
  const int steps = accumulation_steps_from_env(0);
  return sharding::config_of(settings, steps == 0 ? std::nullopt : std::optional(steps));
}

// Empty without DeepSpeed's stages.
std::string config_to_print(const DeepSpeedOptions& read,
                            const std::optional<sharding::FsdpSettings>& fsdp,
                            PrecisionType precision) {
  if (!fsdp || !wants_deepspeed(read.options, process_env())) return {};
  return sharding::printed_config(read.config.empty() ? config_without_file(*fsdp) : read.config,
                                  precision);
}

// What the program asks for, else what the state has that is there already.
PrecisionType mixed_precision_of(const AcceleratorOptions& options) {
  if (!options.mixed_precision && AcceleratorState::initialized())
    return AcceleratorState().mixed_precision();
  return asked_precision(options.mixed_precision, process_env());
}

PrecisionSettings precision_settings(const AcceleratorOptions& options,
                                     const std::optional<sharding::FsdpSettings>& fsdp,
                                     DeepSpeedPrecision deepspeed) {
  PrecisionSettings settings;
  settings.mixed_precision = mixed_precision_of(options);
  refuse_fp8_recipe(options.fp8_recipe);
  settings.deepspeed = std::move(deepspeed);
  settings.autocast = options.autocast;
  settings.grad_scaler = options.grad_scaler;
  if (options.fsdp_plugin) settings.policy = options.fsdp_plugin->mixed_precision_policy;
  settings.fsdp_version = fsdp ? fsdp->version : 1;
  settings.divides_models = fsdp && fsdp->strategy != ShardingStrategy::kNoShard;
  return settings;
}

}  // namespace

recompute::UnitOfParameter recomputed_units(const torch::nn::Module& module,
                                            const sharding::FsdpSettings& settings) {
  recompute::UnitOfParameter units;
  for (const auto& [parameter, group] : sharding::wrap_groups(module, settings))
    units.emplace(parameter, group == sharding::kRootGroup ? recompute::kNoUnit : group);
  return units;
}

std::optional<KeptOperators> kept_operators(const sharding::FsdpSettings& settings) {
  if (settings.recompute_granularity == RecomputeGranularity::kFull) return std::nullopt;
  return KeptOperators::compute_intensive();
}

namespace {

// LibTorch differentiates whole blocks of a script, whose tensors no operator saves.
void refuse_recomputed_script(const torch::nn::Module& module) {
  if (module.as<ScriptModuleImpl>() == nullptr) return;
  throw Error(ErrorCode::kUnsupported,
              "activation_checkpointing (FSDP_ACTIVATION_CHECKPOINTING) of a TorchScript module: "
              "its activations would be kept all the same",
              "leave the option out, or export the model with torch.export (ExportedModel)");
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

// Ranks would give its weights the main process' values, in files.
void refuse_offloaded(const torch::nn::Module& module) {
  if (!pager::has_weights_in_files(module)) return;
  throw Error(ErrorCode::kUnsupported,
              "You can't train a model that has been loaded with a `device_map` with disk in any "
              "distributed mode: its weights on disk can only be read",
              "start one process, prepare it with evaluation_mode, or load it without the map");
}

}  // namespace

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

Preparation::Preparation(const AcceleratorOptions& given)
    : Preparation(given, read_deepspeed_options(given, process_env())) {}

Preparation::Preparation(const AcceleratorOptions& given, DeepSpeedOptions read)
    : options(read.options),
      is_reproducible(wants_reproducible(options)),
      parallelism(sharding::asked_parallelism(options.parallelism_config, process_env())),
      fsdp(fsdp_settings(options, parallelism)),
      recipe(make_recipe(precision_settings(options, fsdp, std::move(read.precision)))),
      state({.mixed_precision = recipe.mixed_precision,
             .cpu = options.cpu,
             .use_fsdp = fsdp.has_value(),
             .use_deepspeed = wants_deepspeed(options, process_env()),
             .ds_config = config_to_print(read, fsdp, recipe.mixed_precision),
             .init_process_group = options.init_process_group}),
      deepspeed_(given, read, fsdp ? config_without_file(*fsdp) : "") {
  if (!read.config.empty())
    sharding::check_batch_sizes(
        read.config, std::nullopt, accumulation_plugin(options).num_steps, sharing_processes());
  for (const std::string& notice : check_unserved_variables(process_env()))
    logger.warning_once(notice);
  if (parallelism) {
    parallelism =
        sharding::fitted(*parallelism, state.num_processes(), what_divides(options, fsdp));
    device_mesh = parallelism->build_device_mesh(state.process_index());
  }
  sharding::set_loads_on_main_only(fsdp);
  for (const std::string& notice : read.notices) logger.info(notice);
  if (fsdp) {
    for (const std::string& notice : fsdp->notices) logger.info(notice);
  }
  if (const auto notice = slow_bf16_notice(recipe, state.device().type(), read_cpu_features()))
    logger.warning_once(*notice);
  if (recipe.scaler) scaler = std::make_shared<GradScaler>(*recipe.scaler, state.device());
}

int Preparation::sharing_processes() const {
  return is_reproducible ? 1 : state.num_processes();
}

// Loaders may outlive this object.
Preparation::~Preparation() {
  for (const auto& loader : data_loaders) loader->set_on_boundary({});
}

ShardOptions Preparation::shard_options(std::optional<bool> device_placement) const {
  const DataLoaderConfiguration& config = options.dataloader_config;
  ShardOptions shard;
  shard.split_batches = config.split_batches;
  shard.even_batches = config.even_batches;
  shard.dispatch_batches = config.dispatch_batches;
  shard.use_seedable_sampler = config.use_seedable_sampler;
  shard.data_seed = config.data_seed;
  shard.non_blocking = config.non_blocking;
  if (device_placement.value_or(options.device_placement)) shard.device = state.device();
  shard.torch_device_mesh = device_mesh;
  shard.rng_types = options.rng_types;
  return shard;
}

void Preparation::set_state_dict_type(StateDictType type) {
  if (fsdp) {
    sharding::check_state_dict_type(type, fsdp->version);
    fsdp->state_dict_type = type;
  } else if (type != StateDictType::kFull) {
    throw Error(ErrorCode::kInvalidArgument,
                std::string(to_string(type)) + " is for models that are divided",
                "set AcceleratorOptions.fsdp_plugin, or ACCELERATE_USE_FSDP");
  }
}

std::shared_ptr<ModelRuntime> Preparation::runtime_for(std::shared_ptr<torch::nn::Module> module,
                                                       const PrepareModelOptions& asked) {
  if (module == nullptr) {
    throw Error(ErrorCode::kInvalidArgument,
                "prepare() got a module holder without a module",
                "construct the model before prepare()");
  }
  for (const auto& known : models) {
    if (known->module() != module) continue;
    if (known->is_for_evaluation() == asked.evaluation_mode) return known;
    throw Error(ErrorCode::kInvalidArgument,
                std::string("a model that was prepared ") +
                    (asked.evaluation_mode ? "for training is prepared with evaluation_mode"
                                           : "with evaluation_mode is prepared for training"),
                "prepare a copy of it: clone() of the module");
  }
  std::shared_ptr<ProcessGroup> group = state.process_group();
  const bool has_others = group != nullptr && group->size() > 1 && !asked.evaluation_mode;
  const bool is_placed = asked.device_placement.value_or(options.device_placement);
  const bool is_trained = has_trainable_parameters(*module);
  const bool is_divided =
      has_others && is_trained && fsdp && fsdp->strategy != ShardingStrategy::kNoShard;
  // A model that is divided goes there by parts: all of it may not fit.
  if (is_placed && !is_divided && !sharding::is_empty(*module)) module->to(state.device());
  if (is_reproducible && !asked.evaluation_mode)
    refuse_irreproducible(*module, options, fsdp, recipe, state.num_processes());
  std::shared_ptr<ModelSync> sync;
  const bool is_alone_on_disk =
      !has_others && is_trained && !asked.evaluation_mode && keeps_parameters_on_disk();
  if (is_alone_on_disk && group == nullptr) group = group_of_this_process();
  if (has_others || is_alone_on_disk) refuse_offloaded(*module);
  if (has_others) sharding::verify_same_settings(fsdp, recipe, *group);
  sharding::refuse_empty_models(*module, has_others ? group.get() : nullptr, fsdp);
  // On one process too: its checkpoints are those of several.
  if (recipe.widens_parameters) sharding::widen_parameters(*module);
  const bool has_budget = fsdp && has_page_budget(*fsdp, group.get());
  if (fsdp && fsdp->recomputes_activations) refuse_recomputed_script(*module);
  if ((has_others && is_trained) || is_alone_on_disk) {
    const auto device = is_placed ? std::optional(state.device()) : std::nullopt;
    sync = make_sync(*module, std::move(group), device);
    if (is_reproducible) sync->set_sync_in_backward(false);  // gradients are exchanged apart
  } else if (has_others && fsdp && fsdp->strategy != ShardingStrategy::kNoShard) {
    sharding::send_frozen_model(*module, *fsdp, *group);
  }
  warn_of_options_without_effect(sync.get(), has_budget);
  if (is_trained && keeps_parameters_on_disk()) {
    return_freed_memory();
  } else if (is_trained) {
    keep_freed_memory();
  }
  models.push_back(std::make_shared<ModelRuntime>(
      module, std::move(sync), recipe, state.device().type(), asked.evaluation_mode));
  if (fsdp && fsdp->recomputes_activations && is_trained && !asked.evaluation_mode)
    models.back()->recompute(recomputed_units(*module, *fsdp), kept_operators(*fsdp));
  return models.back();
}

void Preparation::warn_of_options_without_effect(const ModelSync* sync,
                                                 bool has_page_budget) const {
  const bool is_divided = sync != nullptr && sync->is_divided();
  if (recipe.is_of_shards() && !is_divided) {
    logger.warning_once(
        "mixed_precision_policy changes nothing where a model is not divided: with one process, or "
        "NO_SHARD");
  }
  if (has_page_budget && !(is_divided && sync->is_paged())) {
    logger.warning_once(
        "max_live_bytes (ACCEL_FSDP_MAX_LIVE_BYTES) changes nothing here: units come and go with "
        "FULL_SHARD over several nodes, with parameters on disk, or on GPUs");
  }
}

bool Preparation::keeps_parameters_on_disk() const noexcept {
  return fsdp && !fsdp->parameter_folder.empty();
}

// Of one that no launcher has put into a group.
const std::shared_ptr<ProcessGroup>& Preparation::group_of_this_process() {
  if (own_group_ == nullptr) own_group_ = ProcessGroup::join({}, {});
  return own_group_;
}

// How the ranks keep a model in step.
std::shared_ptr<ModelSync> Preparation::make_sync(const torch::nn::Module& module,
                                                  std::shared_ptr<ProcessGroup> world,
                                                  std::optional<c10::Device> device) {
  const bool is_copied =
      !fsdp || fsdp->strategy == ShardingStrategy::kNoShard || fsdp->keeps_whole_gradients;
  if (is_copied) sharding::verify_same_exchange(options.ddp, *world);
  if (mesh_ == nullptr) {
    const MeshShape shape = sharding::mesh_shape(fsdp, *world);
    const MeshOrder order = fsdp && fsdp->layout ? MeshOrder::kByRank : MeshOrder::kByNode;
    mesh_ = std::make_shared<Mesh>(std::move(world), shape, order);
  }
  if (!fsdp || fsdp->strategy == ShardingStrategy::kNoShard)
    return std::make_shared<DdpReducer>(module, mesh_->group(MeshAxis::kData), options.ddp);
  if (!fsdp->keeps_whole_gradients) refuse_hooked_shards(options.ddp);
  if (fsdp->keeps_whole_gradients) {
    sharded_models_.push_back(std::make_shared<sharding::WholeGradientModel>(
        module, mesh_, *fsdp, recipe, options.ddp, device));
  } else {
    sharded_models_.push_back(
        std::make_shared<sharding::ShardedModel>(module, mesh_, *fsdp, recipe, device));
  }
  return sharded_models_.back();
}

AcceleratedOptimizer Preparation::add_optimizer(
    std::shared_ptr<torch::optim::Optimizer> optimizer) {
  for (const AcceleratedOptimizer& known : optimizers) {
    if (&known.optimizer() == optimizer.get()) return known;
  }
  deepspeed_.refuse_optimizer_of_program();
  return keep_optimizer(std::move(optimizer));
}

AcceleratedOptimizer Preparation::add_optimizer(const DummyOptim& dummy) {
  return keep_optimizer(deepspeed_.make_optimizer(dummy));
}

AcceleratedOptimizer Preparation::keep_optimizer(
    std::shared_ptr<torch::optim::Optimizer> optimizer) {
  if (fsdp && fsdp->gradient_clipping &&
      dynamic_cast<const BackwardOptimizer*>(optimizer.get()) != nullptr) {
    throw Error(ErrorCode::kUnsupported,
                "gradient_clipping of DeepSpeed with an optimizer that steps in the backward: "
                "there is no step() that would clip",
                "set clip_grad_norm of Lomo or AdaLomo, and leave gradient_clipping out");
  }
  optimizers.emplace_back(std::move(optimizer), scaler);
  sharded_optimizers_.emplace_back();
  if (fsdp && fsdp->gradient_clipping) optimizers.back().set_clipping(*fsdp->gradient_clipping);
  match_optimizers();
  if (fsdp && !fsdp->optimizer_folder.empty())
    optimizers.back().keep_state_in(fsdp->optimizer_folder);
  if (fsdp && fsdp->steps_in_backward) step_in_backward(optimizers.back());
  const AcceleratedOptimizer& prepared = optimizers.back();
  for (const AcceleratedScheduler& waiting : unmatched_) {
    if (waiting.scheduler().optimizer() == &prepared.optimizer())
      waiting.set_optimizers({prepared});
  }
  return prepared;
}

// Where gradients land for good in the backward.
void Preparation::step_in_backward(const AcceleratedOptimizer& optimizer) {
  const char* fault = nullptr;
  if (is_reproducible) {
    fault = "gradients of reproducible steps are summed behind it";
  } else if (recipe.reduce && *recipe.reduce != at::kFloat) {
    fault = "the reduce_dtype is not that of the optimizer's parameters";
  } else if (state.num_processes() > 1 &&
             (fsdp->keeps_whole_gradients || fsdp->strategy == ShardingStrategy::kNoShard)) {
    fault = "each rank has all gradients";
  }
  if (fault != nullptr) {
    throw Error(ErrorCode::kUnsupported,
                std::string("step_in_backward cannot be used here: ") + fault,
                "leave it out, or use ZeRO stage 2 or 3, SHARD_GRAD_OP or FULL_SHARD, without "
                "another reduce_dtype than that of the parameters");
  }
  const auto on_gradient = optimizer.step_in_backward();
  if (state.num_processes() > 1 || keeps_parameters_on_disk()) {
    on_gradient_.push_back(on_gradient);
    return tell_gradients();
  }
  std::vector<NamedParameter> parameters;
  for (const auto& group : optimizer.optimizer().param_groups())
    for (const at::Tensor& parameter : group.params()) parameters.push_back({"", parameter});
  landing_.push_back(std::make_unique<GradientHooks>(
      parameters, [parameters, on_gradient](std::size_t i, const at::Tensor& /*arrived*/) {
        on_gradient(parameters[i].tensor, parameters[i].tensor.grad());
      }));
}

void Preparation::tell_gradients() {
  if (on_gradient_.empty()) return;
  for (const auto& model : sharded_models_) {
    model->set_on_gradient(
        [all = on_gradient_](const at::Tensor& piece, const at::Tensor& gradient) {
          for (const auto& each : all) each(piece, gradient);
        });
  }
}

void Preparation::match_optimizers() {
  if (sharded_models_.empty()) return;
  for (std::size_t i = 0; i < optimizers.size(); ++i) {
    sharded_optimizers_[i] = sharding::ShardedOptimizer::rewrite(
        optimizers[i].optimizer(), sharded_optimizers_[i], sharded_models_);
    optimizers[i].set_gate(sharded_optimizers_[i]);
  }
  tell_gradients();
}

AcceleratedScheduler Preparation::add_scheduler(std::shared_ptr<Scheduler> scheduler) {
  for (const AcceleratedScheduler& known : schedulers) {
    if (&known.scheduler() == scheduler.get()) return known;
  }
  deepspeed_.refuse_scheduler_of_program();
  // A step of reproducible training is one, whatever the number of ranks.
  return keep_scheduler(std::move(scheduler),
                        options.dataloader_config.split_batches || is_reproducible);
}

// It steps once for each step of the optimizer, as DeepSpeed's engine does.
AcceleratedScheduler Preparation::add_scheduler(const DummyScheduler& dummy) {
  const int sharing = options.dataloader_config.split_batches ? 1 : sharing_processes();
  return keep_scheduler(
      deepspeed_.make_scheduler(
          dummy, optimizers.empty() ? nullptr : &optimizers.back().optimizer(), sharing),
      /*split_batches=*/true);
}

AcceleratedScheduler Preparation::keep_scheduler(std::shared_ptr<Scheduler> scheduler,
                                                 bool split_batches) {
  schedulers.emplace_back(
      std::move(scheduler),
      std::vector<AcceleratedOptimizer>{},
      AcceleratedSchedulerOptions{options.step_scheduler_with_optimizer, split_batches});
  unmatched_.push_back(schedulers.back());
  return schedulers.back();
}

// A scheduler waits for the optimizer that it was made for, and for all of them when that is unknown, or still to be prepared
// by a later call.
void Preparation::match_schedulers() {
  std::vector<AcceleratedScheduler> waiting;
  for (const AcceleratedScheduler& prepared : unmatched_) {
    Scheduler& scheduler = prepared.scheduler();
    for (const auto& [from, to] : moved_optimizers) {
      if (scheduler.optimizer() == from) scheduler.rebind(*to);
    }
    std::vector<AcceleratedOptimizer> own;
    for (const AcceleratedOptimizer& optimizer : optimizers) {
      if (&optimizer.optimizer() == scheduler.optimizer()) own.push_back(optimizer);
    }
    if (own.empty() && scheduler.optimizer() != nullptr) waiting.push_back(prepared);
    prepared.set_optimizers(own.empty() ? optimizers : std::move(own));
  }
  unmatched_ = std::move(waiting);
  moved_optimizers.clear();
}

void Preparation::add_data_loader(std::shared_ptr<DataLoaderBase> loader,
                                  const std::function<void()>& on_boundary) {
  if (std::find(data_loaders.begin(), data_loaders.end(), loader) != data_loaders.end()) return;
  if (on_boundary) loader->set_on_boundary(on_boundary);
  data_loaders.push_back(std::move(loader));
}

void Preparation::clear() {
  models.clear();
  sharded_models_.clear();
  optimizers.clear();
  sharded_optimizers_.clear();
  schedulers.clear();
  unmatched_.clear();
  for (const auto& loader : data_loaders) loader->set_on_boundary({});
  data_loaders.clear();
}

void Preparation::select_deepspeed_plugin(const std::string& name) {
  DeepSpeedOptions read = deepspeed_.with_plugin(name);
  const auto selected = fsdp_settings(read.options, parallelism);
  const auto copies = [](const auto& settings) {
    return settings->strategy == ShardingStrategy::kNoShard;
  };
  if (copies(selected) != copies(fsdp)) {
    throw Error(ErrorCode::kUnsupported,
                "the DeepSpeed plugin '" + name +
                    "' has another kind of stage than the one before: "
                    "one copies models (stage 0), and the other divides them",
                "give both stage 0, or both one from 1 on, or make an Accelerator for each");
  }
  options.deepspeed_plugin = read.options.deepspeed_plugin;
  fsdp = selected;
  deepspeed_.take(read, config_without_file(*fsdp));
}

const DeepSpeedPlugin& Preparation::deepspeed_plugin() const {
  if (options.deepspeed_plugin) return *options.deepspeed_plugin;
  throw Error(ErrorCode::kInvalidArgument,
              "None of the registered DeepSpeed plugins are active.",
              "set deepspeed_plugin or deepspeed_plugins of the options");
}

std::optional<std::int64_t> Preparation::micro_batch_size() const {
  std::optional<std::int64_t> chosen;
  const bool takes_least = deepspeed_plugin().is_train_batch_min;
  for (const auto& loader : data_loaders) {
    const auto total = loader->plan().total_batch_size();
    if (!total) continue;
    const std::int64_t own = *total / state.num_processes();
    if (!chosen || (takes_least ? own < *chosen : own > *chosen)) chosen = own;
  }
  return chosen;
}

std::string Preparation::deepspeed_config(std::int64_t gradient_accumulation_steps) const {
  return deepspeed_.config(deepspeed_plugin(),
                           fsdp->gradient_clipping.value_or(0),
                           micro_batch_size(),
                           gradient_accumulation_steps,
                           sharing_processes());
}

std::vector<torch::nn::Module*> Preparation::modules() const {
  std::vector<torch::nn::Module*> modules;
  for (const auto& model : models) modules.push_back(model->module().get());
  return modules;
}

std::vector<std::shared_ptr<ModelSync>> Preparation::divided_models() const {
  return {sharded_models_.begin(), sharded_models_.end()};
}

}  // namespace accel::detail
