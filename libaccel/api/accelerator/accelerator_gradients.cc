// Gradients of an Accelerator: how a backward ends on all ranks, and what is done to gradients before a step.

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <ATen/TensorOperators.h>
#include <ATen/ops/full.h>
#include <ATen/ops/max.h>

#include <accel/accelerator.h>
#include <accel/error.h>

#include "libaccel/api/accelerator/accelerator_impl.h"
#include "libaccel/api/accelerator/model_runtime.h"
#include "libaccel/engine/gradients/gradient_hooks.h"
#include "libaccel/engine/optim/gradient_clipping.h"
#include "libaccel/engine/process/process_group.h"
#include "libaccel/engine/process/supervisor_link.h"
#include "libaccel/engine/sharding/sharded_model.h"
#include "libaccel/engine/sharding/sharded_optimizer.h"
#include "libaccel/tensors/checked_number.h"
#include "libaccel/tensors/parameter_list.h"

namespace accel {
namespace {

bool has_gradients(const sharding::ShardedModel& model) {
  for (std::size_t i = 0; i < model.parameters().size(); ++i) {
    if (model.gradients().was_used(i)) return true;
  }
  return false;
}

bool steps(const std::shared_ptr<detail::StepGate>& gate, const sharding::ShardedModel& model) {
  const auto* sharded = sharding::sharded_of(gate);
  if (sharded == nullptr) return false;
  return std::any_of(sharded->models().begin(), sharded->models().end(), [&](const auto& entry) {
    return entry.first.get() == &model;
  });
}

void refuse_averages_with_graph(const std::vector<std::shared_ptr<detail::ModelRuntime>>& models) {
  const bool averages = std::any_of(
      models.begin(), models.end(), [](const auto& model) { return model->sync() != nullptr; });
  if (!averages) return;
  throw Error(ErrorCode::kUnsupported,
              "create_graph is set, and gradients that are averaged over the ranks have no graph",
              "take the inner derivative with torch::autograd::grad(..., create_graph = true), and "
              "call backward() for the loss that is made of it");
}

// Stops a backward at the first gradient of each model that has autocast and whose forwards have all gone past it, in fp32.
std::deque<GradientHooks> refuse_without_autocast(
    const std::vector<std::shared_ptr<detail::ModelRuntime>>& models) {
  std::deque<GradientHooks> hooks;
  for (const auto& model : models) {
    if (model->has_run() || !model->autocast() || !model->autocast()->enabled) continue;
    const std::vector<NamedParameter> parameters = trainable_parameters(*model->module());
    hooks.emplace_back(parameters, [parameters](std::size_t index, const at::Tensor&) {
      throw Error(ErrorCode::kInvalidArgument,
                  "the parameter " + parameters[index].name +
                      " got a gradient from a forward of the module itself, without the mixed "
                      "precision of the Accelerator",
                  "write model(x) or model.forward(x), with the model that prepare() returned, in "
                  "place of model->forward(x); or hold accelerator.autocast() around the forward");
    });
  }
  return hooks;
}

// The parameters of such a model have no gradients, so an optimizer that was not prepared passes all of them by.
void warn_of_models_without_optimizer(
    const std::vector<std::shared_ptr<sharding::ShardedModel>>& models,
    const std::vector<AcceleratedOptimizer>& optimizers,
    const std::function<const std::shared_ptr<detail::StepGate>&(const AcceleratedOptimizer&)>&
        gate_of,
    const Logger& logger) {
  for (const auto& model : models) {
    const bool is_stepped = std::any_of(
        optimizers.begin(), optimizers.end(), [&](const AcceleratedOptimizer& optimizer) {
          return steps(gate_of(optimizer), *model);
        });
    if (is_stepped || !has_gradients(*model)) continue;
    logger.warning_once("no optimizer that was prepared has the parameters of the model of " +
                        model->parameters().front().name +
                        ", which got gradients: no step will change them; give the optimizer to "
                        "prepare(), too");
  }
}

}  // namespace

Accelerator::Impl::OwnGradients Accelerator::Impl::own_gradients(
    const std::vector<at::Tensor>& parameters) const {
  OwnGradients own;
  const auto sharded = sharded_models();
  for (const auto& model : sharded) model->settle();
  for (const at::Tensor& parameter : parameters) {
    // Those of the optimizer's groups.
    if (std::any_of(sharded.begin(), sharded.end(), [&](const auto& each) {
          return each->is_piece(parameter);
        })) {
      own.pieces.push_back(parameter);
      continue;
    }
    const auto model = std::find_if(
        sharded.begin(), sharded.end(), [&](const auto& each) { return each->owns(parameter); });
    if (model == sharded.end()) {
      own.whole.push_back(parameter);
      continue;
    }
    if (const sharding::ShardPiece* piece = (*model)->piece_of(parameter)) {
      own.pieces.push_back(piece->tensor);
    }
  }
  // Also where this rank has no piece of a group: others may, and wait for its part.
  if (!sharded.empty()) own.any = sharded.front();
  return own;
}

void Accelerator::backward(const at::Tensor& loss, const BackwardOptions& options) {
  if (options.create_graph) refuse_averages_with_graph(impl_->models);
  ++impl_->num_batches;
  const int steps = gradient_accumulation_steps();
  at::Tensor scaled = steps == 1 ? loss : loss / steps;
  if (impl_->scaler != nullptr) {
    // Gradients that were clipped and not stepped.
    for (const AcceleratedOptimizer& optimizer : impl_->optimizers)
      impl_->scaler->forget(optimizer.optimizer());
    scaled = impl_->scaler->scale(scaled);
  }
  std::deque<GradientHooks> refusals;
  if (!impl_->has_autocast) refusals = refuse_without_autocast(impl_->models);
  const auto run = [&] { scaled.backward({}, options.retain_graph, options.create_graph); };
  if (!use_distributed()) {
    run();
    detail::beat();
    return;
  }
  const auto abandon = [&] {
    for (const auto& model : impl_->models) {
      if (model->sync() != nullptr) model->sync()->abandon_backward();
    }
  };
  for (const auto& model : impl_->models) {
    if (model->sync() != nullptr) model->sync()->begin_backward();
  }
  try {
    run();
    for (const auto& model : impl_->models) {
      if (model->sync() != nullptr) model->sync()->after_backward();
    }
    // Of whole gradients its step is refused.
    if (impl_->fsdp && !impl_->fsdp->keeps_whole_gradients && sync_gradients())
      warn_of_models_without_optimizer(
          impl_->sharded_models(), impl_->optimizers, &Impl::gate_of, impl_->logger);
  } catch (const Error&) {
    abandon();
    throw;
  } catch (const std::exception& error) {
    abandon();
    // Only a lost connection can be told apart; everything else is LibTorch's own to explain.
    Error lost =
        collective_error(error.what(), "reducing gradients", process_index(), num_processes());
    if (lost.code() != ErrorCode::kPeerLost) throw;
    throw lost;
  }
  detail::beat();
}

at::Tensor Accelerator::clip_grad_norm_(const std::vector<at::Tensor>& parameters,
                                        double max_norm,
                                        double norm_type) {
  check_number(max_norm >= 0, "max_norm", max_norm, "0 or above");
  check_number(!std::isnan(norm_type), "norm_type", norm_type, "a norm: 2, 1 or infinity");
  unscale_gradients();
  const Impl::OwnGradients own = impl_->own_gradients(parameters);
  if (own.any == nullptr) return clip_gradient_norm_(parameters, max_norm, norm_type);
  Mesh& mesh = own.any->mesh();
  if (!(norm_type > 0)) {
    // A rank without a piece does not know of the others'.
    at::Tensor has_pieces = at::full({}, !own.pieces.empty(), at::kInt);
    for (const auto& group : mesh.dividing_groups())
      group->all_reduce_(has_pieces, Reduction::kMax, "clip_grad_norm_");
    if (has_pieces.item<int>() == 0) return clip_gradient_norm_(own.whole, max_norm, norm_type);
    throw Error(ErrorCode::kUnsupported,
                "norm_type is " + std::to_string(norm_type) +
                    ", which parts of divided gradients do not add up to",
                "clip by a norm above 0: 2, 1 or infinity");
  }
  return clip_gradient_norm_(
      own.pieces, own.whole, max_norm, norm_type, [&](const at::Tensor& norm) {
        return combined_norm(mesh.dividing_groups(), norm, norm_type);
      });
}

void Accelerator::clip_grad_value_(const std::vector<at::Tensor>& parameters, double clip_value) {
  check_number(clip_value >= 0, "clip_value", clip_value, "0 or above");
  unscale_gradients();
  const Impl::OwnGradients own = impl_->own_gradients(parameters);
  clip_gradient_value_(own.pieces, clip_value);
  clip_gradient_value_(own.whole, clip_value);
}

void Accelerator::unscale_gradients() {
  for (const AcceleratedOptimizer& optimizer : impl_->optimizers) unscale_gradients(optimizer);
}

void Accelerator::unscale_gradients(const AcceleratedOptimizer& optimizer) {
  if (impl_->scaler == nullptr) return;
  if (!sync_gradients()) {
    throw Error(ErrorCode::kInvalidArgument,
                "fp16 gradients cannot be unscaled while they are being accumulated",
                "clip only when accelerator.sync_gradients() is true");
  }
  optimizer.unscale();
}

bool Accelerator::optimizer_step_was_skipped() const {
  return std::any_of(
      impl_->optimizers.begin(),
      impl_->optimizers.end(),
      [](const AcceleratedOptimizer& optimizer) { return optimizer.step_was_skipped(); });
}

}  // namespace accel
