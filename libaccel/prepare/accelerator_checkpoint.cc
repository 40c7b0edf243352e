#include <algorithm>
#include <numeric>
#include <tuple>
#include <utility>
#include <vector>

#include <accel/accelerator.h>
#include <accel/checkpoint.h>
#include <accel/error.h>
#include <accel/random.h>

#include "libaccel/checkpoint/manifest.h"
#include "libaccel/checkpoint/rank_exchange.h"
#include "libaccel/prepare/accelerator_impl.h"
#include "libaccel/process/process_group.h"
#include "libaccel/process/supervisor_link.h"
#include "libaccel/sharding/sharded_model.h"
#include "libaccel/sharding/sharded_optimizer.h"
#include "libaccel/sharding/whole_optimizer.h"
#include "libaccel/state_reader.h"

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
      CheckpointSeriesOptions{.folder = std::filesystem::path(project.project_dir) / "checkpoints",
                              .total_limit = project.total_limit,
                              .iteration = project.iteration,
                              .restart_count = state.restart_count(),
                              .save_on_each_node = project.save_on_each_node});
  return *checkpoints;
}

// One rank of each node speaks for it. What it is told holds for all: a refusal fails the save on
// every rank. A supervisor that does not answer is no reason to end a run whose checkpoint is
// complete.
void Accelerator::Impl::commit(CheckpointInfo& checkpoint) {
  const std::unique_ptr<checkpoint::RankExchange> ranks = checkpoint::current_ranks();
  const auto tokens = checkpoint::agree(*ranks, [&]() -> std::string {
                        if (ranks->local_rank() != 0) return "";
                        return commit_here(checkpoint, logger);
                      }).payloads_or_throw();
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

// For a scope, the parameters of sharded models have their full precision.
class FullPrecision {
 public:
  explicit FullPrecision(const std::vector<std::shared_ptr<sharding::ShardedModel>>& models) {
    try {
      for (const auto& model : models) {
        model->begin_save();
        models_.push_back(model);
      }
    } catch (...) {
      end();
      throw;
    }
  }
  ~FullPrecision() { end(); }
  FullPrecision(const FullPrecision&) = delete;
  FullPrecision& operator=(const FullPrecision&) = delete;

 private:
  void end() {
    for (const auto& model : models_) model->end_save();
  }

  std::vector<std::shared_ptr<sharding::ShardedModel>> models_;
};

// nullptr: the optimizer is not sharded.
const sharding::ShardedOptimizer* sharded_of(const std::shared_ptr<detail::StepGate>& gate) {
  return dynamic_cast<const sharding::ShardedOptimizer*>(gate.get());
}

}  // namespace

bool Accelerator::Impl::saves_on_several_nodes() const {
  return project.save_on_each_node && state.local_num_processes() < state.num_processes();
}

CheckpointObjects Accelerator::Impl::objects_to_load() {
  whole_optimizers.clear();
  divided.clear();
  for (const auto& model : sharded_models()) sharding::divide_parameters(*model, divided);
  for (const AcceleratedOptimizer& optimizer : optimizers) {
    const auto* sharded = sharded_of(gate_of(optimizer));
    whole_optimizers.push_back(
        sharded == nullptr ? nullptr : sharding::whole_optimizer(optimizer.optimizer(), *sharded));
  }
  return checkpoint_objects();
}

CheckpointObjects Accelerator::Impl::objects_to_save() {
  std::ignore = objects_to_load();
  if (saves_on_several_nodes()) divided.clear();  // so that all is whole on every rank
  for (std::size_t i = 0; i < optimizers.size(); ++i) {
    if (whole_optimizers[i] == nullptr) continue;
    sharding::describe_states(optimizers[i].optimizer(),
                              *sharded_of(gate_of(optimizers[i])),
                              *whole_optimizers[i],
                              divided);
  }
  // Every replica has every part; the first one writes them.
  const auto models = sharded_models();
  const bool is_copy = std::any_of(models.begin(), models.end(), [](const auto& model) {
    const auto& replicas = model->mesh().replicas;
    return replicas != nullptr && replicas->rank() > 0;
  });
  if (is_copy) divided.give_up_parts();
  return checkpoint_objects();
}

std::optional<LoadReport> Accelerator::Impl::load(const Load& load) {
  const auto models = sharded_models();
  const Released released{whole_optimizers, divided};
  const CheckpointObjects objects = objects_to_load();
  for (const auto& model : models) model->begin_load();
  std::optional<LoadReport> report;
  try {
    report = load(objects);
    // A rank that is through writes no shard while another one still loads.
    if (!models.empty()) state.wait_for_everyone();
  } catch (...) {
    for (const auto& model : models) model->end_load();
    throw;
  }
  for (const auto& model : models) model->end_load();
  for (const auto& model : models) model->publish_loaded();
  if (report) take_loaded_states(models);
  return report;
}

void Accelerator::Impl::take_loaded_states(
    const std::vector<std::shared_ptr<sharding::ShardedModel>>& models) {
  // Each rank has loaded its own pieces.
  for (const auto& model : models) {
    std::vector<std::size_t> units(model->units().size());
    std::iota(units.begin(), units.end(), std::size_t{0});
    model->publish(units);
  }
  for (std::size_t i = 0; i < whole_optimizers.size(); ++i) {
    if (whole_optimizers[i] == nullptr) continue;
    sharding::take_states(*whole_optimizers[i],
                          *sharded_of(gate_of(optimizers[i])),
                          divided,
                          optimizers[i].optimizer());
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
  return impl_->objects_to_save();
}

RemovableHandle Accelerator::register_save_state_pre_hook(StateHook hook) {
  return add_hook(impl_->save_hooks, std::move(hook));
}

RemovableHandle Accelerator::register_load_state_pre_hook(StateHook hook) {
  return add_hook(impl_->load_hooks, std::move(hook));
}

CheckpointInfo Accelerator::Impl::save(const std::filesystem::path& folder) {
  CheckpointInfo saved;
  const Released released{whole_optimizers, divided};
  const FullPrecision full_precision(sharded_models());
  const CheckpointObjects objects = objects_to_save();
  if (project.automatic_checkpoint_naming || folder.empty()) {
    saved = checkpoint_series().save(objects, num_batches);
  } else {
    saved = save_checkpoint(folder,
                            objects,
                            {.step = num_batches,
                             .generation = state.restart_count(),
                             .save_on_each_node = project.save_on_each_node});
  }
  commit(saved);
  return saved;
}

CheckpointInfo Accelerator::save_state(const std::filesystem::path& folder) {
  return impl_->save(folder);
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
  CheckpointSeries& series = impl_->checkpoint_series();
  if (start == RunStart::kAnew && restart_count() == 0) {
    series.remove_all();
    return std::nullopt;
  }
  const std::optional<LoadReport> report = impl_->load(
      [&](const CheckpointObjects& objects) { return series.load_newest_if_any(objects); });
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
  const FullPrecision full_precision(impl_->sharded_models());
  if (is_main_process()) accel::save_model(*model.module(), folder, options);
  wait_for_everyone();
}

std::int64_t Accelerator::save_iteration() const noexcept {
  return impl_->checkpoints ? impl_->checkpoints->iteration() : impl_->project.iteration;
}

}  // namespace accel
