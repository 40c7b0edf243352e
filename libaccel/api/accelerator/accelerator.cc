#include <algorithm>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>

#include <ATen/core/ivalue.h>

#include <accel/accelerator.h>
#include <accel/detail/step_span.h>
#include <accel/env_contract.h>
#include <accel/error.h>
#include <accel/saved_object.h>

#include "libaccel/api/accelerator/accelerator_impl.h"
#include "libaccel/api/accelerator/joining.h"
#include "libaccel/api/accelerator/preemption.h"
#include "libaccel/engine/checkpoint/series/background_save.h"
#include "libaccel/engine/pager/weight_file.h"
#include "libaccel/engine/process/join_roll.h"

namespace accel {

Accelerator::Accelerator(const AcceleratorOptions& options)
    : impl_(std::make_unique<Impl>(options)) {}
Accelerator::~Accelerator() = default;
Accelerator::Accelerator(Accelerator&&) noexcept = default;
Accelerator& Accelerator::operator=(Accelerator&&) noexcept = default;

// ---- preparing

std::shared_ptr<detail::ModelRuntime> Accelerator::runtime_for(
    std::shared_ptr<torch::nn::Module> module, const PrepareModelOptions& options) {
  return impl_->preparation.runtime_for(std::move(module), options);
}

AcceleratedOptimizer Accelerator::prepare_optimizer(
    std::shared_ptr<torch::optim::Optimizer> optimizer) {
  return impl_->preparation.add_optimizer(std::move(optimizer));
}

AcceleratedOptimizer Accelerator::prepare_optimizer(const DummyOptim& optimizer) {
  return impl_->preparation.add_optimizer(optimizer);
}

AcceleratedScheduler Accelerator::add_scheduler(const DummyScheduler& scheduler) {
  return impl_->preparation.add_scheduler(scheduler);
}

void Accelerator::select_deepspeed_plugin(const std::string& name) {
  impl_->preparation.select_deepspeed_plugin(name);
}

const DeepSpeedPlugin& Accelerator::get_deepspeed_plugin(const std::string& name) const {
  return impl_->preparation.deepspeed_plugin(name);
}

const DeepSpeedPlugin& Accelerator::deepspeed_plugin() const {
  return impl_->preparation.deepspeed_plugin();
}

std::string Accelerator::deepspeed_config() const {
  return impl_->preparation.deepspeed_config(gradient_state().num_steps());
}

AcceleratedScheduler Accelerator::add_scheduler(std::shared_ptr<Scheduler> scheduler) {
  return impl_->preparation.add_scheduler(std::move(scheduler));
}

void Accelerator::add_data_loader(std::shared_ptr<DataLoaderBase> loader) {
  impl_->preparation.add_data_loader(std::move(loader), impl_->on_boundary);
}

void Accelerator::match_optimizers() {
  impl_->preparation.match_optimizers();
}

void Accelerator::note_move(const void* from, std::shared_ptr<torch::optim::Optimizer> to) {
  impl_->preparation.moved_optimizers.emplace_back(from, std::move(to));
}

void Accelerator::match_schedulers() {
  impl_->preparation.match_schedulers();
}

void Accelerator::check_device_placement(const PrepareOptions& options,
                                         std::size_t num_objects) const {
  if (!options.device_placement) return;
  if (distributed_type() == DistributedType::kDeepspeed) {
    throw Error(ErrorCode::kInvalidArgument,
                "device_placement of prepare() is given, and DeepSpeed places what it divides",
                "leave device_placement out");
  }
  if (options.device_placement->size() == num_objects) return;
  throw Error(ErrorCode::kInvalidArgument,
              "device_placement should be a list with " + std::to_string(num_objects) +
                  " elements (the number of objects passed), and has " +
                  std::to_string(options.device_placement->size()),
              "give one value for each object, or leave device_placement out");
}

ShardOptions Accelerator::shard_options(std::optional<bool> device_placement) const {
  return impl_->preparation.shard_options(device_placement);
}

void Accelerator::set_even_batches(bool even_batches) {
  impl_->preparation.options.dataloader_config.even_batches = even_batches;
}

bool Accelerator::use_stateful_dataloader() const noexcept {
  return impl_->preparation.options.dataloader_config.use_stateful_dataloader;
}

ShardOptions Accelerator::micro_batch_options() const {
  ShardOptions options = shard_options();
  if (reproducible()) options.micro_batches = micro_batches();
  return options;
}

bool Accelerator::verify_device_map(const torch::nn::Module& model) {
  return pager::is_spread(model);
}

void Accelerator::free_memory() {
  impl_->preparation.clear();
  impl_->checkpointing.content().clear();
  impl_->training.begin_anew();
  checkpoint::background_saves().release_copies();
}

// ---- the training step

void Accelerator::backward(const at::Tensor& loss, const BackwardOptions& options) {
  impl_->training.backward(loss, options);
}

void Accelerator::lomo_backward(const at::Tensor& loss, double learning_rate) {
  impl_->training.lomo_backward(loss, learning_rate);
}

bool Accelerator::next_batch_syncs() {
  return impl_->training.next_batch_syncs();
}

void Accelerator::set_gradient_accumulation_steps(int steps) {
  impl_->training.set_accumulation_steps(steps);
}

bool Accelerator::reproducible() const noexcept {
  return impl_->preparation.is_reproducible;
}

MicroBatches Accelerator::micro_batches() const {
  if (const auto* const steps = impl_->training.reproducible()) return steps->run();
  const std::int64_t own = gradient_accumulation_steps();
  return {.total = own, .begin = 0, .end = own};
}

at::Tensor Accelerator::clip_grad_norm_(const std::vector<at::Tensor>& parameters,
                                        double max_norm,
                                        double norm_type) {
  const JoinRoll::Within announced = detail::Joining::announce_clip(
      impl_->preparation, parameters, JoinRoll::Call::kClipNorm, max_norm, norm_type);
  return impl_->training.clip_norm(parameters, max_norm, norm_type);
}

void Accelerator::clip_grad_value_(const std::vector<at::Tensor>& parameters, double clip_value) {
  const JoinRoll::Within announced = detail::Joining::announce_clip(
      impl_->preparation, parameters, JoinRoll::Call::kClipValue, clip_value);
  impl_->training.clip_value(parameters, clip_value);
}

void Accelerator::unscale_gradients() {
  JoinRoll* const roll = JoinRoll::of_training();
  if (roll != nullptr) roll->announce({.call = JoinRoll::Call::kUnscale});
  const JoinRoll::Within announced(roll);
  impl_->training.unscale_all();
}

void Accelerator::unscale_gradients(const AcceleratedOptimizer& optimizer) {
  JoinRoll* const roll = JoinRoll::of_training();
  if (roll != nullptr)
    roll->announce_of(&optimizer.optimizer(), {.call = JoinRoll::Call::kUnscale});
  const JoinRoll::Within announced(roll);
  impl_->training.unscale(optimizer);
}

Autocast Accelerator::autocast() const {
  return autocast(impl_->preparation.options.autocast);
}

Autocast Accelerator::autocast(const AutocastKwargs& options) const {
  impl_->training.note_autocast();
  const detail::Preparation& prepared = impl_->preparation;
  return Autocast(autocast_options(prepared.recipe, options, prepared.state.device().type()));
}

bool Accelerator::optimizer_step_was_skipped() const {
  const std::vector<AcceleratedOptimizer>& optimizers = impl_->preparation.optimizers;
  return std::any_of(optimizers.begin(), optimizers.end(), [](const auto& each) {
    return each.step_was_skipped();
  });
}

GradScaler* Accelerator::scaler() const noexcept {
  return impl_->preparation.scaler.get();
}

void Accelerator::set_trigger() {
  impl_->training.set_trigger();
}

bool Accelerator::check_trigger() {
  return impl_->training.check_trigger();
}

JoinScope Accelerator::join(const std::vector<const detail::ModelRuntime*>& models,
                            const JoinOptions& options) const {
  return JoinScope(
      std::make_shared<detail::Joining>(impl_->preparation, impl_->training, models, options));
}

std::optional<std::int64_t> Accelerator::samples_of_last_batch() const {
  const bool at_end = gradient_state().end_of_dataloader();
  const std::int64_t remainder = gradient_state().remainder();
  if (at_end && remainder == -1 && !own_samples_of_last_batch()) {
    impl_->preparation.logger.info(
        "the dataset has no known length: gather_for_metrics() keeps what was repeated to fill the "
        "last batch");
  }
  return rows_to_keep(at_end, remainder);
}

std::optional<std::int64_t> Accelerator::own_samples_of_last_batch() const {
  const ActiveDataLoader* const loader = gradient_state().active_dataloader();
  const bool is_known =
      loader == nullptr || !loader->end_of_dataloader() || loader->remainder() != -1;
  return is_known ? std::nullopt : loader->own_remainder();
}

const AcceleratorState& Accelerator::state() const noexcept {
  return impl_->preparation.state;
}
const GradientState& Accelerator::gradient_state() const noexcept {
  return impl_->training.gradient_state();
}

// ---- how the processes are laid out

namespace {

int rank_along(const std::optional<ParallelismConfig>& config,
               const std::optional<DeviceMesh>& mesh,
               std::string_view axis,
               const char* what) {
  if (!config) {
    throw Error(ErrorCode::kNotInitialized,
                std::string(what) + " is not configured. Set `parallelism_config` first.",
                "set AcceleratorOptions::parallelism_config");
  }
  const bool is_enabled =
      mesh && std::ranges::find(mesh->mesh_dim_names, axis) != mesh->mesh_dim_names.end();
  return is_enabled ? mesh->get_local_rank(axis) : 0;
}

}  // namespace

const std::optional<ParallelismConfig>& Accelerator::parallelism_config() const noexcept {
  return impl_->preparation.parallelism;
}

const std::optional<DeviceMesh>& Accelerator::torch_device_mesh() const noexcept {
  return impl_->preparation.device_mesh;
}

bool Accelerator::is_fsdp2() const {
  const auto& fsdp = impl_->preparation.fsdp;
  return distributed_type() == DistributedType::kFsdp && fsdp && fsdp->version == 2;
}

bool Accelerator::should_save_model() const {
  return parallelism_config() || is_local_main_process();
}

int Accelerator::data_parallel_rank() const {
  return rank_along(parallelism_config(), torch_device_mesh(), "dp_replicate", "Data parallelism");
}

int Accelerator::data_parallel_shard_rank() const {
  return rank_along(
      parallelism_config(), torch_device_mesh(), "dp_shard", "Shard-based data parallelism");
}

int Accelerator::tensor_parallel_rank() const {
  return rank_along(parallelism_config(), torch_device_mesh(), "tp", "Tensor parallelism");
}

int Accelerator::pipeline_parallel_rank() const {
  throw Error(ErrorCode::kUnsupported, "Pipeline parallelism is currently not supported.");
}

int Accelerator::context_parallel_rank() const {
  throw Error(ErrorCode::kUnsupported, "Context parallelism is currently not supported.");
}

FP8BackendType Accelerator::fp8_backend() const {
  return accel::fp8_backend(process_env());
}

// ---- project and checkpoints

const ProjectConfiguration& Accelerator::project_configuration() const noexcept {
  return impl_->checkpointing.project();
}

std::int64_t Accelerator::save_iteration() const noexcept {
  return impl_->checkpointing.iteration();
}

void Accelerator::add_custom_object(Stateful& object) {
  impl_->checkpointing.content().add_object(object);
}

RemovableHandle Accelerator::register_save_state_pre_hook(SaveStateHook hook) {
  return impl_->checkpointing.content().add_save_hook(std::move(hook));
}

RemovableHandle Accelerator::register_save_state_pre_hook(StateHook hook) {
  return register_save_state_pre_hook(
      [hook = std::move(hook)](const std::vector<torch::nn::Module*>& models,
                               std::vector<ModelWeights>& /*weights*/,
                               const std::filesystem::path& folder) { hook(models, folder); });
}

RemovableHandle Accelerator::register_load_state_pre_hook(LoadStateHook hook) {
  return impl_->checkpointing.content().add_load_hook(std::move(hook));
}

CheckpointInfo Accelerator::save_state(const std::filesystem::path& folder,
                                       const SaveStateOptions& options) {
  const detail::StepSpan span(detail::StepPart::kIo);
  impl_->trackers.flush();
  return impl_->checkpointing.save(folder, options);
}

void Accelerator::async_save_state(const std::filesystem::path& folder,
                                   const SaveStateOptions& options) {
  const detail::StepSpan span(detail::StepPart::kIo);
  impl_->trackers.flush();
  impl_->checkpointing.begin_save(folder, options);
}

std::optional<CheckpointInfo> Accelerator::wait_for_save() {
  const detail::StepSpan span(detail::StepPart::kIo);
  return impl_->checkpointing.finish_save();
}

CheckpointInfo Accelerator::load_state(const std::filesystem::path& folder,
                                       const LoadStateOptions& options) {
  const detail::StepSpan span(detail::StepPart::kIo);
  return impl_->checkpointing.load(folder, options);
}

void Accelerator::save(const c10::IValue& object,
                       const std::filesystem::path& file,
                       const SaveObjectOptions& options) const {
  SaveObjectOptions chosen = options;
  chosen.save_on_each_node |= project_configuration().save_on_each_node;
  accel::save(object, file, chosen);
}

void Accelerator::save(const c10::IValue& object, const std::filesystem::path& file) const {
  save(object, file, {});
}

std::optional<CheckpointInfo> Accelerator::begin_run(RunStart start) {
  const detail::StepSpan span(detail::StepPart::kIo);
  return impl_->checkpointing.begin_run(start);
}

bool Accelerator::save_state_in_memory() {
  const detail::StepSpan span(detail::StepPart::kIo);
  return impl_->checkpointing.save_in_memory();
}

std::optional<CheckpointInfo> Accelerator::load_state_in_memory() {
  const detail::StepSpan span(detail::StepPart::kIo);
  return impl_->checkpointing.load_in_memory();
}

bool Accelerator::preemption_requested() const noexcept {
  return detail::is_preemption_asked();
}

void Accelerator::save_state_and_exit() {
  impl_->checkpointing.save_and_exit();
}

CheckpointObjects Accelerator::checkpoint_objects() const {
  for (const auto& model : impl_->preparation.divided_models()) {
    if (!model->has_masters()) continue;
    throw Error(
        ErrorCode::kUnsupported,
        "a model with a mixed_precision_policy has its full precision only while save_state() "
        "runs, and one that is divided over GPUs by FULL_SHARD its parameters",
        "call save_state()");
  }
  return impl_->checkpointing.content().objects_to_save(detail::SaveTo::kDisk);
}

StateDictType Accelerator::state_dict_type() const noexcept {
  const auto& fsdp = impl_->preparation.fsdp;
  return fsdp ? fsdp->state_dict_type : StateDictType::kFull;
}

void Accelerator::set_state_dict_type(StateDictType type) {
  impl_->preparation.set_state_dict_type(type);
}

// ---- experiment trackers

void Accelerator::init_trackers(const std::string& project_name,
                                const TrackerDict& config,
                                const TrackerDict& init_kwargs) {
  impl_->trackers.init(project_name, config, init_kwargs);
}

void Accelerator::log(const TrackerDict& values,
                      std::optional<std::int64_t> step,
                      const TrackerDict& log_kwargs) {
  impl_->trackers.log(values, step, log_kwargs);
}

void Accelerator::log_images(const TrackerImages& values,
                             std::optional<std::int64_t> step,
                             const TrackerDict& log_kwargs) {
  impl_->trackers.log_images(values, step, log_kwargs);
}

GeneralTracker& Accelerator::get_tracker(std::string_view name) const {
  return impl_->trackers.at(name);
}

void Accelerator::end_training() {
  AcceleratorState& state = impl_->preparation.state;
  try {
    impl_->trackers.finish();
    {
      const detail::StepSpan span(detail::StepPart::kIo);
      std::ignore = impl_->checkpointing.finish_save();
    }
    detail::publish_step_times(/*is_step=*/false);
    const bool is_on_several_nodes = state.local_num_processes() < state.num_processes();
    // Others may still fetch this rank's parameters: one that evaluates alone.
    if (is_on_several_nodes && !impl_->preparation.divided_models().empty())
      state.wait_for_everyone();
  } catch (...) {
    state.destroy_process_group();
    throw;
  }
  state.destroy_process_group();
}

}  // namespace accel
