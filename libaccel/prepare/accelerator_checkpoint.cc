#include <utility>

#include <accel/accelerator.h>
#include <accel/checkpoint.h>
#include <accel/error.h>
#include <accel/random.h>

#include "libaccel/prepare/accelerator_impl.h"
#include "libaccel/state_reader.h"

namespace accel {
namespace {

constexpr const char* kStepKey = "step";  // batches of the accumulation that is under way

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

CheckpointObjects Accelerator::checkpoint_objects() const {
  CheckpointObjects objects;
  for (const auto& model : impl_->models) objects.models.push_back(model->module().get());
  for (const auto& optimizer : impl_->optimizers) {
    objects.optimizers.push_back(&optimizer.optimizer());
  }
  for (const auto& scheduler : impl_->schedulers) {
    objects.schedulers.push_back(&scheduler.scheduler());
  }
  for (const auto& loader : impl_->data_loaders) objects.loaders.push_back(loader.get());
  objects.scaler = impl_->scaler.get();
  objects.random = &impl_->random_states;
  objects.custom = impl_->custom_objects;
  return objects;
}

CheckpointInfo Accelerator::save_state(const std::filesystem::path& folder) {
  if (impl_->project.automatic_checkpoint_naming || folder.empty()) {
    return impl_->checkpoint_series().save(checkpoint_objects(), impl_->num_batches);
  }
  return save_checkpoint(folder,
                         checkpoint_objects(),
                         {.step = impl_->num_batches,
                          .generation = restart_count(),
                          .save_on_each_node = impl_->project.save_on_each_node});
}

CheckpointInfo Accelerator::load_state(const std::filesystem::path& folder) {
  const CheckpointObjects objects = checkpoint_objects();
  const bool has_series = !impl_->project.project_dir.empty();
  LoadReport report;
  if (folder.empty()) {
    report = impl_->checkpoint_series().load_newest(objects);
  } else if (has_series) {
    report = impl_->checkpoint_series().load(folder, objects);
  } else {
    report = load_checkpoint(folder, objects);
  }
  for (const std::string& notice : report.notices) impl_->logger.warning(notice);
  impl_->num_batches = report.checkpoint.step;
  return report.checkpoint;
}

void Accelerator::save_weights(const detail::ModelRuntime& model,
                               const std::filesystem::path& folder,
                               const SaveModelOptions& options) const {
  if (is_main_process()) accel::save_model(*model.module(), folder, options);
  wait_for_everyone();
}

std::int64_t Accelerator::save_iteration() const noexcept {
  return impl_->checkpoints ? impl_->checkpoints->iteration() : impl_->project.iteration;
}

}  // namespace accel
