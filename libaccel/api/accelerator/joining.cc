#include "libaccel/api/accelerator/joining.h"

#include <algorithm>
#include <bit>
#include <cstddef>
#include <exception>
#include <tuple>
#include <unordered_map>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <torch/nn/module.h>

#include <accel/error.h>

#include "libaccel/engine/gradients/gradient_exchange.h"
#include "libaccel/engine/gradients/zero_gradients.h"
#include "libaccel/engine/process/process_group.h"

namespace accel {
namespace detail {
namespace {

using Announced = JoinRoll::Call;
using Missing = ExchangeState::Missing;

// Those that clipping may be asked for, in one order on all ranks.
std::vector<at::Tensor> clippable_parameters(const Preparation& prepared) {
  std::vector<at::Tensor> parameters;
  for (const auto& model : prepared.models) {
    for (const NamedParameter& parameter : trainable_parameters(*model->module()))
      parameters.push_back(parameter.tensor);
  }
  return parameters;
}

// 1 for those of clippable_parameters() that are asked for, themselves or as this rank's piece of them.
at::Tensor chosen(const Preparation& prepared, const std::vector<at::Tensor>& asked) {
  std::unordered_map<const c10::TensorImpl*, std::int64_t> places;
  const std::vector<at::Tensor> all = clippable_parameters(prepared);
  const auto divided = prepared.divided_models();
  for (std::size_t i = 0; i < all.size(); ++i) {
    places.emplace(all[i].unsafeGetTensorImpl(), static_cast<std::int64_t>(i));
    for (const auto& model : divided) {
      const std::optional<at::Tensor> piece = model->piece(all[i]);
      if (piece && piece->defined())
        places.emplace(piece->unsafeGetTensorImpl(), static_cast<std::int64_t>(i));
    }
  }
  at::Tensor mask = at::zeros({std::ssize(all)}, at::kInt);
  for (const at::Tensor& parameter : asked) {
    const auto place = places.find(parameter.unsafeGetTensorImpl());
    if (place != places.end()) mask.mutable_data_ptr<int>()[place->second] = 1;
  }
  return mask;
}

}  // namespace

Joining::Joining(const Preparation& prepared,
                 Training& training,
                 const std::vector<const ModelRuntime*>& models,
                 const JoinOptions& options)
    : prepared_(prepared), training_(training) {
  if (!prepared.state.use_distributed() || prepared.state.num_processes() == 1) return;
  const bool even_batches =
      options.even_batches.value_or(prepared.options.dataloader_config.even_batches);
  for (const ModelRuntime* const model : models) {
    if (model->sync() == nullptr) continue;
    models_.push_back({model->sync(), trainable_parameters(*model->module())});
  }
  if (!even_batches && prepared.is_reproducible) {
    throw Error(ErrorCode::kUnsupported,
                "join_uneven_inputs() in reproducible training: a step has as many micro-batches "
                "whatever the ranks have",
                "leave AcceleratorOptions.reproducible out, or the scope");
  }
  const bool trains_apart = std::ranges::any_of(
      prepared.models, [](const auto& model) { return model->local_training() != nullptr; });
  if (!even_batches && trains_apart) {
    throw Error(ErrorCode::kUnsupported,
                "join_uneven_inputs() while DiLoCo lives: ranks without batches do not take part "
                "in its averages",
                "leave one of them out");
  }
  const bool gathers_together = std::ranges::any_of(models_, [&](const auto& model) {
    return model.sync->is_paged() && !prepared.state.device().is_cpu();
  });
  if (!even_batches && gathers_together) {
    throw Error(ErrorCode::kUnsupported,
                "join_uneven_inputs() of a model that FULL_SHARD divides over GPUs: its units are "
                "gathered by all ranks, and one without batches runs no module",
                "use SHARD_GRAD_OP, or even_batches");
  }
  if (!even_batches && prepared.options.nan_watch &&
      prepared.options.nan_watch->action == OnAnomaly::kThrow) {
    throw Error(ErrorCode::kUnsupported,
                "join_uneven_inputs() with a nan_watch that throws: a rank without batches does "
                "not take part in its question",
                "set NanWatch.action to kWarn, or leave the scope out");
  }
  if (!even_batches) roll_.emplace(prepared.state.process_group(), objects());
  if (options.even_batches) override_even_batches(even_batches);
}

Joining::~Joining() {
  for (const auto& [loader, even_batches] : even_batches_) loader->set_even_batches(even_batches);
}

void Joining::override_even_batches(bool even_batches) {
  bool has_iterable = false;
  for (const auto& loader : prepared_.data_loaders) {
    const std::optional<bool> present = loader->even_batches();
    if (!present) {
      has_iterable = true;
      continue;
    }
    even_batches_.emplace_back(loader, *present);
    loader->set_even_batches(even_batches);
  }
  if (!has_iterable) return;
  prepared_.logger.warning(
      "Overriding even_batches is only supported for map-style datasets, yet some dataloaders "
      "given were iterable");
}

std::vector<const void*> Joining::objects() const {
  std::vector<const void*> objects;
  for (const Model& model : models_) objects.push_back(&model.sync->exchange());
  for (const AcceleratedOptimizer& optimizer : prepared_.optimizers)
    objects.push_back(&optimizer.optimizer());
  for (const AcceleratedScheduler& scheduler : prepared_.schedulers)
    objects.push_back(&scheduler.scheduler());
  return objects;
}

void Joining::finish() {
  if (!roll_) return;
  roll_->join();
  bool is_last = true;
  while (const auto announcement = roll_->await()) {
    is_last = false;
    take_part(*announcement);
  }
  at::Tensor from = at::full({}, is_last ? prepared_.state.process_index() : -1, at::kInt);
  roll_->group().all_reduce_(from, Reduction::kMax, "join_uneven_inputs");
  for (const Model& model : models_) model.sync->end_join(from.item<int>());
}

void Joining::take_part(const JoinRoll::Announcement& announcement) {
  const auto object = static_cast<std::size_t>(announcement.object);
  const std::size_t first_optimizer = models_.size();
  const std::size_t first_scheduler = first_optimizer + prepared_.optimizers.size();
  switch (announcement.call) {
    case Announced::kForward:
      return forward(models_.at(object), announcement);
    case Announced::kBackward:
      if (announcement.most == 0) release_gradients(models_.at(object).parameters);
      if (object == 0) training_.count_backward();
      return;
    case Announced::kExchange:
      return exchange(models_.at(object));
    case Announced::kWeightUnit:
      return training_.weights().take_part_in_unit();
    case Announced::kWeightSum:
      return training_.weights().take_part_in_end();
    case Announced::kBatch:
      return;
    case Announced::kClipNorm:
    case Announced::kClipValue:
      return clip(announcement);
    case Announced::kScheduler:
      return step_scheduler(announcement, prepared_.schedulers.at(object - first_scheduler));
    default:
      break;
  }
  training_.gradient_state().set_sync_gradients(true);
  if (announcement.object < 0) return training_.unscale_all();
  const AcceleratedOptimizer& optimizer = prepared_.optimizers.at(object - first_optimizer);
  if (announcement.call == Announced::kUnscale) training_.unscale(optimizer);
  if (announcement.call == Announced::kStep) optimizer.step();
  if (announcement.call == Announced::kZeroGrad) optimizer.zero_grad(announcement.a != 0);
}

void Joining::forward(Model& model, const JoinRoll::Announcement& announcement) const {
  const bool has_graph = announcement.a != 0;
  if (has_graph && announcement.most == 0) release_gradients(model.parameters);
  const at::AutoGradMode mode(has_graph);
  const bool synced = model.sync->set_sync_in_backward(announcement.b != 0);
  model.sync->before_forward();
  // Where a backward finds out what is used, this rank uses nothing.
  const bool is_found = model.sync->exchange().missing() == Missing::kIsFound;
  model.outputs = {output_without_forward(
      model.parameters, is_found ? NoGradient::kIsUndefined : NoGradient::kIsZero)};
  model.sync->after_forward(model.outputs);
  std::ignore = model.sync->set_sync_in_backward(synced);
}

void Joining::exchange(Model& model) {
  const Missing missing = model.sync->exchange().missing();
  std::vector<at::Tensor> outputs = std::exchange(model.outputs, {});
  if (outputs.empty() && missing != Missing::kIsZero)  // a forward of the module itself
    outputs = {output_without_forward(model.parameters, NoGradient::kIsZero)};
  const bool synced = model.sync->set_sync_in_backward(true);
  if (!model.sync->exchange().exchanges()) model.sync->sync_next_backward();
  model.sync->begin_backward();
  try {
    // What is scattered is filled up with zeros at the end.
    if (missing != Missing::kIsZero) outputs.front().backward();
    model.sync->after_backward();
  } catch (...) {
    model.sync->abandon_backward();
    throw;
  }
  std::ignore = model.sync->set_sync_in_backward(synced);
}

JoinRoll::Within Joining::announce_clip(const Preparation& prepared,
                                        const std::vector<at::Tensor>& parameters,
                                        JoinRoll::Call call,
                                        double limit,
                                        double norm_type) {
  JoinRoll* const roll = JoinRoll::of_training();
  if (roll != nullptr) {
    roll->announce({.call = call,
                    .a = std::bit_cast<std::int64_t>(limit),
                    .b = std::bit_cast<std::int64_t>(norm_type)});
    at::Tensor mask = chosen(prepared, parameters);
    roll->group().all_reduce_(mask, Reduction::kMax, "join_uneven_inputs");
  }
  return JoinRoll::Within(roll);
}

void Joining::clip(const JoinRoll::Announcement& announcement) const {
  at::Tensor mask = chosen(prepared_, {});
  roll_->group().all_reduce_(mask, Reduction::kMax, "join_uneven_inputs");
  const std::vector<at::Tensor> all = clippable_parameters(prepared_);
  std::vector<at::Tensor> parameters;
  for (std::size_t i = 0; i < all.size(); ++i) {
    if (mask.const_data_ptr<int>()[i] != 0) parameters.push_back(all[i]);
  }
  training_.gradient_state().set_sync_gradients(true);
  const auto limit = std::bit_cast<double>(announcement.a);
  if (announcement.call == Announced::kClipValue) return training_.clip_value(parameters, limit);
  std::ignore = training_.clip_norm(parameters, limit, std::bit_cast<double>(announcement.b));
}

void Joining::step_scheduler(const JoinRoll::Announcement& announcement,
                             const AcceleratedScheduler& scheduler) {
  training_.gradient_state().set_sync_gradients(announcement.most != 0);
  if (announcement.a == 0) return scheduler.step();
  scheduler.step(std::bit_cast<double>(announcement.b));
}

}  // namespace detail

JoinScope::JoinScope(std::shared_ptr<detail::Joining> joining)
    : joining_(std::move(joining)), exceptions_at_entry_(std::uncaught_exceptions()) {}

JoinScope::~JoinScope() noexcept(false) {
  const std::shared_ptr<detail::Joining> joining = std::move(joining_);
  if (std::uncaught_exceptions() == exceptions_at_entry_) joining->finish();
}

}  // namespace accel
