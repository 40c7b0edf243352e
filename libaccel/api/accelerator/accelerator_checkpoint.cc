#include <algorithm>
#include <exception>
#include <span>
#include <tuple>
#include <utility>
#include <vector>

#include <accel/accelerator.h>
#include <accel/checkpoint.h>
#include <accel/error.h>
#include <accel/random.h>

#include "libaccel/api/accelerator/accelerator_impl.h"
#include "libaccel/engine/checkpoint/ranks/rank_exchange.h"
#include "libaccel/engine/checkpoint/series/background_save.h"
#include "libaccel/engine/process/process_group.h"
#include "libaccel/engine/process/supervisor_link.h"
#include "libaccel/engine/sharding/full_precision.h"
#include "libaccel/engine/sharding/sharded_model.h"
#include "libaccel/engine/sharding/sharded_optimizer.h"
#include "libaccel/engine/sharding/whole_optimizer.h"
#include "libaccel/tensors/state_reader.h"
#include "runtime/checkpoint/manifest.h"

namespace accel {
namespace {

constexpr const char* kStepKey = "step";  // batches of the accumulation that is under way

RemovableHandle add_hook(const std::shared_ptr<detail::StateHooks>& hooks, StateHook hook) {
  const std::uint64_t id = hooks->next_id++;
  hooks->by_id.emplace(id, std::move(hook));
  return {hooks, id};
}

// The supervisor's token; empty when nobody listens. Errors kCheckpointMismatch: it refused, because
// a newer generation of the job has begun.
std::string commit_here(const CheckpointInfo& checkpoint, const Logger& logger) {
  WorkerChannel* const channel = detail::supervisor_channel();
  if (channel == nullptr) return "";
  const std::string digest = or_throw(checkpoint::read_manifest(checkpoint.folder)).digest;
  Result<std::string> token = channel->commit(static_cast<std::uint64_t>(checkpoint.step),
                                              std::filesystem::absolute(checkpoint.folder).string(),
                                              digest);
  if (!token && token.error().code() == ErrorCode::kPeerLost) {
    logger.warning("the launcher was not told of the checkpoint: " + token.error().message());
    return "";
  }
  return or_throw(std::move(token));
}

// Copies: a hook may remove itself, or another one, while it runs.
std::vector<CheckpointHook> bound_hooks(const detail::StateHooks& hooks,
                                        const std::vector<torch::nn::Module*>& models) {
  std::vector<CheckpointHook> bound;
  for (const auto& [id, hook] : hooks.by_id) {
    bound.push_back([hook, models](const std::filesystem::path& folder) { hook(models, folder); });
  }
  return bound;
}

}  // namespace

StateDict Accelerator::Impl::RandomStates::state_dict() const {
  StateDict state = rng_state();
  state.values[kStepKey] = owner_.batch_count;
  return state;
}

void Accelerator::Impl::RandomStates::load_state_dict(const StateDict& state) {
  const std::int64_t batch_count = StateReader("the random states", state).integer(kStepKey);
  set_rng_state(state);
  owner_.batch_count = batch_count;
}

CheckpointSeries& Accelerator::Impl::checkpoint_series() {
  if (checkpoints) return *checkpoints;
  if (project.project_dir.empty()) {
    throw Error(ErrorCode::kInvalidArgument,
                "checkpoints without a folder need a project",
                "set AcceleratorOptions.project_dir and "
                "project_config.automatic_checkpoint_naming, or name a folder");
  }
  checkpoints.emplace(
      CheckpointSeriesOptions{.folder = checkpoint_folder,
                              .total_limit = project.total_limit,
                              .iteration = project.iteration,
                              .restart_count = std::max(state.restart_count(), has_gone_on ? 1 : 0),
                              .save_on_each_node = project.save_on_each_node});
  return *checkpoints;
}

// One rank of each node speaks for it. What it is told holds for all: a refusal fails the save on
// every rank. A supervisor that does not answer is no reason to end a run whose checkpoint is
// complete.
void Accelerator::Impl::commit(CheckpointInfo& checkpoint) {
  const std::unique_ptr<checkpoint::RankExchange> ranks = checkpoint::current_ranks();
  const auto tokens = or_throw(checkpoint::agree(*ranks, [&]() -> std::string {
    if (ranks->local_rank() != 0) return "";
    return commit_here(checkpoint, logger);
  }));
  checkpoint.commit_token = tokens[static_cast<std::size_t>(ranks->rank() - ranks->local_rank())];
}

CheckpointObjects Accelerator::Impl::checkpoint_objects() {
  CheckpointObjects objects;
  for (const auto& model : models) objects.models.push_back(model->module().get());
  for (std::size_t i = 0; i < optimizers.size(); ++i) {
    const bool is_whole = i >= whole_optimizers.size() || whole_optimizers[i] == nullptr;
    objects.optimizers.push_back(is_whole ? &optimizers[i].optimizer() : whole_optimizers[i].get());
  }
  for (const auto& scheduler : schedulers) {
    objects.schedulers.push_back(&scheduler.scheduler());
  }
  for (const auto& loader : data_loaders) objects.loaders.push_back(loader.get());
  objects.scaler = scaler.get();
  objects.random = &random_states;
  objects.custom = custom_objects;
  objects.before_save = bound_hooks(*save_hooks, objects.models);
  objects.before_load = bound_hooks(*load_hooks, objects.models);
  if (!divided.empty()) objects.divided = &divided;
  return objects;
}

namespace {

// Empties them at the end of a scope: they hold on to states that the optimizers may have replaced by then.
struct Released {
  std::vector<std::unique_ptr<torch::optim::Optimizer>>& optimizers;
  checkpoint::DividedTensors& divided;
  ~Released() {
    optimizers.clear();
    divided.clear();
  }
};

// For a scope, or until end(), the parameters of sharded models may be written to.
class OpenToLoad {
 public:
  OpenToLoad(const std::vector<std::shared_ptr<sharding::ShardedModel>>& models,
             sharding::Exposure exposure,
             std::span<const at::Tensor> asked) {
    try {
      for (const auto& model : models) {
        model->begin_load(exposure, asked);
        models_.push_back(model);
      }
    } catch (...) {
      abandon();
      throw;
    }
  }
  ~OpenToLoad() { abandon(); }
  OpenToLoad(const OpenToLoad&) = delete;
  OpenToLoad& operator=(const OpenToLoad&) = delete;

  // Of all of them, whichever throws: then the first error.
  void end() {
    std::exception_ptr failure;
    for (const auto& model : std::exchange(models_, {})) {
      try {
        model->end_load();
      } catch (...) {
        if (!failure) failure = std::current_exception();
      }
    }
    if (failure) std::rethrow_exception(failure);
  }

 private:
  // What is thrown already, and why the load ends, counts.
  void abandon() noexcept {
    try {
      end();
    } catch (...) {  // NOLINT(bugprone-empty-catch)
    }
  }

  std::vector<std::shared_ptr<sharding::ShardedModel>> models_;
};

}  // namespace

bool Accelerator::Impl::saves_on_several_nodes() const {
  return project.save_on_each_node && state.local_num_processes() < state.num_processes();
}

bool Accelerator::Impl::writes_wholes() const {
  return saves_on_several_nodes() || (fsdp && fsdp->state_dict_type == StateDictType::kFull);
}

// In memory every rank keeps its own parts.
sharding::Wholes Accelerator::Impl::wholes_to_save(SaveTo to) const {
  if (to == SaveTo::kMemory || !writes_wholes()) return sharding::Wholes::kKept;
  const bool writes =
      project.save_on_each_node ? state.is_local_main_process() : state.is_main_process();
  return writes ? sharding::Wholes::kKept : sharding::Wholes::kDropped;
}

CheckpointObjects Accelerator::Impl::objects_to_load() {
  whole_optimizers.clear();
  divided.clear();
  for (const auto& model : sharded_models()) sharding::divide_parameters(*model, divided);
  for (const AcceleratedOptimizer& optimizer : optimizers) {
    const auto* sharded = sharding::sharded_of(gate_of(optimizer));
    whole_optimizers.push_back(
        sharded == nullptr ? nullptr : sharding::whole_optimizer(optimizer.optimizer(), *sharded));
  }
  return checkpoint_objects();
}

CheckpointObjects Accelerator::Impl::objects_to_save(SaveTo to) {
  std::ignore = objects_to_load();
  // So that all is whole where it is written.
  if (to == SaveTo::kDisk && writes_wholes()) divided.clear();
  for (std::size_t i = 0; i < optimizers.size(); ++i) {
    if (whole_optimizers[i] == nullptr) continue;
    sharding::describe_states(optimizers[i].optimizer(),
                              *sharding::sharded_of(gate_of(optimizers[i])),
                              *whole_optimizers[i],
                              divided,
                              wholes_to_save(to));
  }
  if (to == SaveTo::kMemory) {
    share_replicas();
    return checkpoint_objects();
  }
  // Every replica has every part; the first one writes them.
  const auto models = sharded_models();
  const bool is_copy = std::any_of(models.begin(), models.end(), [](const auto& model) {
    Mesh& mesh = model->mesh();
    return mesh.size(MeshAxis::kReplicate) > 1 && mesh.group(MeshAxis::kReplicate)->rank() > 0;
  });
  if (is_copy) divided.leave_writing_to_others();
  return checkpoint_objects();
}

std::optional<LoadReport> Accelerator::Impl::load(const Load& load) {
  std::ignore = finish_save();
  const auto models = sharded_models();
  const Released released{whole_optimizers, divided};
  const CheckpointObjects objects = objects_to_load();
  const Exposed exposed = parameters_to_load();
  OpenToLoad open(models, exposed.exposure, exposed.asked);
  std::optional<LoadReport> report = load(objects);
  // A rank that is through writes no shard while another one still loads.
  if (!models.empty()) state.wait_for_everyone();
  open.end();
  if (report) {
    take_loaded_states(models);
  } else {  // hooks of a checkpoint that was passed over may have written
    for (const auto& model : models) model->publish_loaded();
  }
  return report;
}

void Accelerator::Impl::take_loaded_states(
    const std::vector<std::shared_ptr<sharding::ShardedModel>>& models) {
  // Each rank has loaded its own pieces.
  for (const auto& model : models) model->publish_loaded();
  for (std::size_t i = 0; i < whole_optimizers.size(); ++i) {
    if (whole_optimizers[i] == nullptr) continue;
    auto& sharded = dynamic_cast<sharding::ShardedOptimizer&>(*gate_of(optimizers[i]));
    sharding::take_states(*whole_optimizers[i], sharded, divided, optimizers[i].optimizer());
    sharded.note_states();
  }
}

const std::shared_ptr<detail::StepGate>& Accelerator::Impl::gate_of(
    const AcceleratedOptimizer& optimizer) {
  return optimizer.gate();
}

CheckpointObjects Accelerator::checkpoint_objects() const {
  for (const auto& model : impl_->sharded_models()) {
    if (!model->has_masters()) continue;
    throw Error(
        ErrorCode::kUnsupported,
        "a model with a mixed_precision_policy has its full precision only while save_state() runs",
        "call save_state()");
  }
  return impl_->objects_to_save(Impl::SaveTo::kDisk);
}

RemovableHandle Accelerator::register_save_state_pre_hook(StateHook hook) {
  return add_hook(impl_->save_hooks, std::move(hook));
}

RemovableHandle Accelerator::register_load_state_pre_hook(StateHook hook) {
  return add_hook(impl_->load_hooks, std::move(hook));
}

void Accelerator::Impl::with_objects_to_save(
    SaveTo to, const std::function<void(const CheckpointObjects&)>& save) {
  if (!gradient_state.sync_gradients()) {
    logger.warning_once(
        "a checkpoint in the middle of an accumulation has no gradients: a run that goes on from "
        "it steps with those of the "
        "batches behind it; save where sync_gradients() is true");
  }
  const Released released{whole_optimizers, divided};
  const Exposed exposed = parameters_to_save(to);
  const FullPrecision full_precision(sharded_models(), exposed.exposure, exposed.asked);
  save(objects_to_save(to));
}

CheckpointInfo Accelerator::Impl::save(const std::filesystem::path& folder) {
  std::ignore = finish_save();
  CheckpointInfo saved;
  with_objects_to_save(SaveTo::kDisk, [&](const CheckpointObjects& objects) {
    if (project.automatic_checkpoint_naming || folder.empty()) {
      saved = checkpoint_series().save(objects, num_batches);
    } else {
      saved = save_checkpoint(folder, objects, save_options());
    }
  });
  newest_on_disk.reset();
  commit(saved);
  return saved;
}

SaveOptions Accelerator::Impl::save_options() const {
  return {.step = num_batches,
          .generation = state.restart_count(),
          .save_on_each_node = project.save_on_each_node};
}

void Accelerator::Impl::begin_save(const std::filesystem::path& folder) {
  std::ignore = finish_save();
  with_objects_to_save(SaveTo::kDisk, [&](const CheckpointObjects& objects) {
    if (project.automatic_checkpoint_naming || folder.empty()) {
      saving = checkpoint_series().begin_save(objects, num_batches);
    } else {
      saving = async_save_checkpoint(folder, objects, save_options());
    }
  });
}

// Ranks may know different things of its end: what is thrown is agreed on.
std::optional<CheckpointInfo> Accelerator::Impl::finish_save() {
  if (!saving) return std::nullopt;
  AsyncSave ended = *std::exchange(saving, std::nullopt);
  newest_on_disk.reset();
  std::ignore = checkpoint::background_saves().end(*checkpoint::current_ranks());
  CheckpointInfo saved = ended.wait();
  if (saved.folder.empty())
    return std::nullopt;  // its error was thrown by a save that did not go through here
  commit(saved);
  return saved;
}

CheckpointInfo Accelerator::save_state(const std::filesystem::path& folder) {
  return impl_->save(folder);
}

void Accelerator::async_save_state(const std::filesystem::path& folder) {
  impl_->begin_save(folder);
}

std::optional<CheckpointInfo> Accelerator::wait_for_save() {
  return impl_->finish_save();
}

CheckpointInfo Accelerator::load_state(const std::filesystem::path& folder) {
  const bool has_series = !impl_->project.project_dir.empty();
  const auto report = impl_->load([&](const CheckpointObjects& objects) {
    if (folder.empty()) return impl_->checkpoint_series().load_newest(objects);
    if (has_series) return impl_->checkpoint_series().load(folder, objects);
    return load_checkpoint(folder, objects);
  });
  return take_over(*report);
}

std::optional<CheckpointInfo> Accelerator::begin_run(RunStart start) {
  std::ignore = impl_->checkpoint_series();  // there is a project
  std::ignore = impl_->finish_save();
  if (start != RunStart::kResume && !impl_->is_restarted()) {
    if (start == RunStart::kFirst) {
      impl_->checkpoint_series().refuse_present();
    } else {
      impl_->checkpoint_series().remove_all();
    }
    impl_->reserve_memory();
    return std::nullopt;
  }
  if (const std::optional<LoadReport> report = impl_->load_from_memory(Impl::DiskCounts::kYes)) {
    impl_->reserve_memory();
    return take_over(*report);
  }
  CheckpointSeries& series = impl_->checkpoint_series();
  const std::optional<LoadReport> report = impl_->load(
      [&](const CheckpointObjects& objects) { return series.load_newest_if_any(objects); });
  impl_->reserve_memory();
  if (!report) {
    impl_->logger.warning("there is no complete checkpoint in " + series.folder().string() +
                          ": starting from the beginning");
    return std::nullopt;
  }
  return take_over(*report);
}

// What was loaded decides where the counts of this object go on.
const CheckpointInfo& Accelerator::take_over(const LoadReport& report) {
  for (const std::string& notice : report.notices) impl_->logger.warning(notice);
  impl_->num_batches = impl_->boundary_batch = report.checkpoint.step;
  return report.checkpoint;
}

void Accelerator::save_weights(const detail::ModelRuntime& model,
                               const std::filesystem::path& folder,
                               const SaveModelOptions& options) const {
  const FullPrecision full_precision(
      impl_->sharded_models(),
      is_main_process() ? sharding::Exposure::kAll : sharding::Exposure::kNone);
  std::ignore = or_throw(checkpoint::agree(*checkpoint::current_ranks(), [&]() -> std::string {
    if (is_main_process()) accel::save_model(*model.module(), folder, options);
    return {};
  }));
}

std::int64_t Accelerator::save_iteration() const noexcept {
  return impl_->checkpoints ? impl_->checkpoints->iteration() : impl_->project.iteration;
}

}  // namespace accel
