// How a backward ends on all ranks, and what is done to gradients before a step.

#include "libaccel/api/accelerator/training.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <deque>
#include <exception>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include <ATen/TensorOperators.h>
#include <ATen/ops/full.h>
#include <ATen/ops/max.h>

#include <accel/error.h>
#include <accel/lomo.h>
#include <accel/random.h>

#include "libaccel/api/accelerator/backward_step.h"
#include "libaccel/api/accelerator/local_training.h"
#include "libaccel/engine/gradients/gradient_hooks.h"
#include "libaccel/engine/gradients/zero_gradients.h"
#include "libaccel/engine/optim/exact_norm.h"
#include "libaccel/engine/optim/gradient_clipping.h"
#include "libaccel/engine/process/join_roll.h"
#include "libaccel/engine/process/process_group.h"
#include "libaccel/tensors/checked_number.h"
#include "libaccel/tensors/parameter_list.h"
#include "libaccel/tensors/state_reader.h"

namespace accel::detail {
namespace {

constexpr const char* kStepKey = "step";  // batches of the accumulation that is under way

using Models = std::vector<std::shared_ptr<ModelRuntime>>;

void check_steps(int steps) {
  if (steps >= 1) return;
  throw Error(ErrorCode::kInvalidArgument,
              "gradient_accumulation_steps is " + std::to_string(steps) + ", expected at least 1");
}

// Of each model whose communication hook remembers something: "comm_hook_0." and so on, by place among the models.
template <typename Call>
void for_each_hook(const Models& models, Call call) {
  for (std::size_t i = 0; i < models.size(); ++i) {
    Stateful* const hook = models[i]->sync() == nullptr ? nullptr : models[i]->sync()->hook_state();
    if (hook != nullptr) call("comm_hook_" + std::to_string(i) + ".", *hook);
  }
}

// Of each model whose ranks train apart: "local_training_0." and so on.
template <typename Call>
void for_each_local_training(const Models& models, Call call) {
  for (std::size_t i = 0; i < models.size(); ++i) {
    LocalTraining* const training = models[i]->local_training();
    if (training != nullptr)
      call("local_training_" + std::to_string(i) + ".", training->own_state());
  }
}

void add_part(const std::string& prefix, const Stateful& object, StateDict& state) {
  const StateDict own = object.state_dict();
  for (const auto& [key, value] : own.values) state.values[prefix + key] = value;
  for (const auto& [key, tensor] : own.tensors) state.tensors[prefix + key] = tensor;
}

// What `state` has under names that begin so, without that beginning.
StateDict part_of(const StateDict& state, const std::string& prefix) {
  StateDict part;
  for (const auto& [key, value] : state.values)
    if (key.starts_with(prefix)) part.values[key.substr(prefix.size())] = value;
  for (const auto& [key, tensor] : state.tensors)
    if (key.starts_with(prefix)) part.tensors[key.substr(prefix.size())] = tensor;
  return part;
}

void refuse_averages_with_graph(const Models& models) {
  const bool averages = std::any_of(
      models.begin(), models.end(), [](const auto& model) { return model->sync() != nullptr; });
  if (!averages) return;
  throw Error(ErrorCode::kUnsupported,
              "create_graph is set, and gradients that are averaged over the ranks have no graph",
              "take the inner derivative with torch::autograd::grad(..., create_graph = true), and "
              "call backward() for the loss that is made of it");
}

// Stops a backward at the first gradient of each model whose forwards have all gone past what they should have had: autocast, or
// units that are computed again.
std::deque<GradientHooks> refuse_forwards_past(const Models& models) {
  std::deque<GradientHooks> hooks;
  for (const auto& model : models) {
    const bool recomputes = model->recomputed_units() != nullptr;
    if (model->has_run() || !(model->recipe().casts_by_autocast() || recomputes)) continue;
    const std::vector<NamedParameter> parameters = trainable_parameters(*model->module());
    const char* const fault =
        recomputes ? ", which has kept all activations, and activation_checkpointing is set"
                   : ", without the mixed precision of the Accelerator";
    const char* const other_remedy =
        recomputes ? "" : "; or hold accelerator.autocast() around the forward";
    hooks.emplace_back(parameters, [=](std::size_t index, const at::Tensor&) {
      throw Error(ErrorCode::kInvalidArgument,
                  "the parameter " + parameters[index].name +
                      " got a gradient from a forward of the module itself" + fault,
                  std::string("write model(x) or model.forward(x), with the model that prepare() "
                              "returned, in place of model->forward(x)") +
                      other_remedy);
    });
  }
  return hooks;
}

}  // namespace

Training::Training(const Preparation& prepared)
    : prepared_(prepared),
      gradient_state_(accumulation_plugin(prepared.options)),
      weights_(prepared) {
  check_steps(gradient_state_.num_steps());
  if (prepared.is_reproducible) steps_.emplace(prepared, gradient_state_.num_steps());
  if (const auto& watch = prepared.options.nan_watch) {
    if (steps_ && watch->action == OnAnomaly::kThrow) {
      throw Error(ErrorCode::kUnsupported,
                  "a nan_watch that throws, in reproducible training: ranks have different numbers "
                  "of micro-batches",
                  "set NanWatch.action to kWarn");
    }
    watcher_.emplace(*watch, prepared);
  }
}

void Training::set_accumulation_steps(int steps) {
  check_steps(steps);
  if (steps_ && steps != gradient_state_.num_steps()) {
    throw Error(ErrorCode::kUnsupported,
                "the number of micro-batches of a step is fixed in reproducible training",
                "set AcceleratorOptions.gradient_accumulation_steps");
  }
  gradient_state_ = GradientState({.num_steps = steps,
                                   .adjust_scheduler = gradient_state_.adjust_scheduler(),
                                   .sync_with_dataloader = gradient_state_.sync_with_dataloader(),
                                   .sync_each_batch = gradient_state_.sync_each_batch()});
}

bool Training::next_batch_syncs() {
  if (steps_) {
    steps_->begin_micro_batch();
    gradient_state_.set_sync_gradients(steps_->is_last());
    return false;
  }
  const bool ends_loader =
      gradient_state_.sync_with_dataloader() && gradient_state_.end_of_dataloader();
  batch_count_ = ends_loader ? 0 : batch_count_ + 1;
  bool syncs = ends_loader || batch_count_ % gradient_state_.num_steps() == 0;
  // The last batch of any rank synchronises on all.
  if (JoinRoll* const roll = JoinRoll::of_training()) {
    syncs = roll->announce(
                {.call = JoinRoll::Call::kBatch, .most = static_cast<std::int64_t>(syncs)}) != 0;
  }
  gradient_state_.set_sync_gradients(syncs);
  return syncs || (gradient_state_.sync_each_batch() && exchanges_gradients());
}

void Training::count_backward() {
  ++num_batches_;
  for (StepObserver* const observer : observers_) observer->after_backward();
}

// Ranks that may run out of batches do not come to the same boundaries.
void Training::end_batch() {
  if (JoinRoll::current() != nullptr) return;
  if (num_batches_ == boundary_batch_ || !gradient_state_.sync_gradients()) return;
  boundary_batch_ = num_batches_;
  for (StepObserver* const observer : observers_) observer->at_boundary();
}

namespace {

// learning_rate: it steps, which changes what a graph that is kept has saved, before a sum of weights is known.
void refuse_beside_learning_rate(const BackwardOptions& options) {
  const char* const other = options.weight                         ? "a weight"
                            : options.create_graph                 ? "create_graph"
                            : options.retain_graph.value_or(false) ? "retain_graph"
                                                                   : nullptr;
  if (other == nullptr) return;
  throw Error(ErrorCode::kUnsupported,
              std::string("a backward has ") + other + " and a learning_rate, with which it steps",
              "leave one of them out, or use another optimizer than Lomo and AdaLomo");
}

}  // namespace

void Training::backward(const at::Tensor& loss, const BackwardOptions& options) {
  if (options.learning_rate) {
    refuse_beside_learning_rate(options);
    return lomo_backward(loss, *options.learning_rate);
  }
  if (options.create_graph) refuse_averages_with_graph(prepared_.models);
  weights_.check(options.weight);
  if (options.weight) refuse_weight_without_end();
  if (steps_) steps_->begin_backward();
  ++num_batches_;
  // What counts for nothing may be NaN.
  const std::int64_t number =
      steps_ ? steps_->num_micro_batches() + steps_->micro_batch() + 1 : num_batches_;
  if (watcher_) watcher_->begin(loss, number, options.weight != 0.0);
  try {
    differentiate(scaled(loss_part(loss, options.weight)), options);
    if (watcher_) watcher_->end();
  } catch (...) {
    abandon_micro_batch();
    throw;
  }
  if (steps_) steps_->end_backward();
  const auto run = steps_ ? std::optional(steps_->run()) : std::nullopt;
  weights_.add(options.weight, steps_ ? std::optional(steps_->micro_batch()) : std::nullopt);
  if (gradient_state_.sync_gradients()) weights_.end(run);
  for (StepObserver* const observer : observers_) observer->after_backward();
}

// A step of reproducible training lacks a micro-batch then. Another accumulation keeps the weights of the gradients that it has,
// unless it is over.
void Training::abandon_micro_batch() {
  if (steps_) steps_->begin_anew();
  if (steps_ || gradient_state_.sync_gradients()) weights_.begin_anew();
}

at::Tensor Training::scaled(const at::Tensor& part) const {
  const auto& scaler = prepared_.scaler;
  if (scaler == nullptr) return part;
  // Gradients that were clipped and not stepped.
  for (const AcceleratedOptimizer& optimizer : prepared_.optimizers)
    scaler->forget(optimizer.optimizer());
  return scaler->scale(part);
}

// One process alone does with parameters on a disk, which are pieces of a model that is divided.
bool Training::exchanges_gradients() const {
  return prepared_.state.use_distributed() ||
         std::ranges::any_of(prepared_.models,
                             [](const auto& model) { return model->sync() != nullptr; });
}

void Training::differentiate(const at::Tensor& scaled_loss, const BackwardOptions& options) const {
  std::deque<GradientHooks> refusals;
  if (!has_autocast_) refusals = refuse_forwards_past(prepared_.models);
  if (exchanges_gradients()) {
    run_on_all_ranks(scaled_loss, options);
  } else {
    scaled_loss.backward({}, options.retain_graph, options.create_graph);
  }
}

const AcceleratedOptimizer& Training::backward_optimizer() const {
  const AcceleratedOptimizer* found = nullptr;
  for (const AcceleratedOptimizer& each : prepared_.optimizers) {
    if (dynamic_cast<const BackwardOptimizer*>(&each.optimizer()) == nullptr) continue;
    if (found != nullptr) {
      throw Error(ErrorCode::kInvalidArgument,
                  "several optimizers were prepared that step in the backward, and one backward "
                  "serves one of them",
                  "give all parameters to one Lomo or AdaLomo, in groups");
    }
    found = &each;
  }
  if (found != nullptr) return *found;
  throw Error(
      ErrorCode::kInvalidArgument,
      "Backward pass not properly called on LOMO optimizers. Are you sure you passed a LOMO "
      "optimizer in accelerator.prepare()?",
      "prepare an accel::Lomo or accel::AdaLomo, or leave learning_rate out");
}

// What a step behind each gradient knows nothing of.
void Training::refuse_step_in_backward() const {
  const char* const beside = steps_                           ? "reproducible training"
                             : JoinRoll::current() != nullptr ? "join_uneven_inputs()"
                                                              : nullptr;
  if (beside == nullptr) return;
  throw Error(ErrorCode::kUnsupported,
              std::string("a backward that steps, of Lomo or AdaLomo, within ") + beside,
              "use another optimizer there");
}

void Training::lomo_backward(const at::Tensor& loss, double learning_rate) {
  refuse_step_in_backward();
  const AcceleratedOptimizer& prepared = backward_optimizer();
  auto& optimizer = dynamic_cast<BackwardOptimizer&>(prepared.optimizer());
  const bool is_alone = !exchanges_gradients();
  if (!is_alone && !gradient_state_.sync_gradients()) {
    throw Error(
        ErrorCode::kInvalidArgument,
        "a backward that steps was called for a batch whose gradients are to be accumulated",
        "set gradient_accumulation_steps to 1");
  }
  ++num_batches_;
  if (watcher_) watcher_->begin(loss, num_batches_, true);
  if (is_alone && prepared_.scaler == nullptr) {
    step_as_gradients_come(optimizer, learning_rate, [&](bool is_followed) {
      differentiate(scaled(loss_part(loss, std::nullopt)), {.retain_graph = is_followed});
    });
  } else {
    differentiate(scaled(loss_part(loss, std::nullopt)), {});
    std::optional<double> max_norm = optimizer.clip_grad_norm();
    if (prepared_.scaler != nullptr && !max_norm) {
      prepared_.logger.warning_once(
          "Loss scale is recommended to be used with grad norm to get better performance. Set grad "
          "norm to 1.0.");
      max_norm = 1.0;
    }
    prepared.step_behind_backward(learning_rate, max_norm);
  }
  if (watcher_) watcher_->end();
  for (StepObserver* const observer : observers_) observer->after_backward();
}

// What it has in the gradient of the accumulation.
at::Tensor Training::loss_part(const at::Tensor& loss, std::optional<double> weight) {
  if (weight) return loss * weights_.begin(*weight);
  const int steps = gradient_state_.num_steps();
  return steps == 1 ? loss : loss / steps;
}

// no_sync() of the program's own, LocalSGD and DiLoCo.
void Training::refuse_weight_without_end() const {
  if (steps_ || !gradient_state_.sync_gradients()) return;
  for (const auto& model : prepared_.models) {
    if (model->sync() == nullptr || model->sync()->syncs_in_backward()) continue;
    throw Error(ErrorCode::kUnsupported,
                "a backward within no_sync(), LocalSGD or DiLoCo has a weight, and no accumulation "
                "tells "
                "where the mean is made",
                "hold accelerator.accumulate(model) around forward and backward in place of "
                "no_sync(), and leave the weight out with LocalSGD and DiLoCo");
  }
}

void Training::go_on_from(std::int64_t num_batches) {
  num_batches_ = boundary_batch_ = num_batches;
  weights_.begin_anew();
  if (steps_) steps_->agree_on_record();
}

void Training::begin_anew() {
  batch_count_ = 0;
  if (watcher_) watcher_->let_go();
  weights_.begin_anew();
  if (steps_) steps_->begin_anew();
}

void Training::run_on_all_ranks(const at::Tensor& loss, const BackwardOptions& options) const {
  std::vector<ModelSync*> models;
  for (const auto& model : prepared_.models) {
    if (model->sync() != nullptr) models.push_back(model->sync().get());
  }
  const auto abandon = [&] {
    for (ModelSync* const model : models) model->abandon_backward();
  };
  announce_backward();
  for (ModelSync* const model : models) model->begin_backward();
  try {
    loss.backward({}, options.retain_graph, options.create_graph);
    for (ModelSync* const model : models) model->after_backward();
    if (gradient_state_.sync_gradients()) warn_of_models_without_optimizer();
  } catch (const Error&) {
    abandon();
    throw;
  } catch (const std::exception& error) {
    abandon();
    // Only a lost connection can be told apart; everything else is LibTorch's own to explain.
    const AcceleratorState& state = prepared_.state;
    Error lost = collective_error(
        error.what(), "reducing gradients", state.process_index(), state.num_processes());
    if (lost.code() != ErrorCode::kPeerLost) throw;
    throw lost;
  }
}

// Ranks without batches take part.
void Training::announce_backward() const {
  JoinRoll* const roll = JoinRoll::of_training();
  if (roll == nullptr) return;
  for (const auto& model : prepared_.models) {
    if (model->sync() == nullptr) continue;
    const bool has = has_gradients(trainable_parameters(*model->module()));
    roll->announce_of(&model->sync()->exchange(),
                      {.call = JoinRoll::Call::kBackward, .most = static_cast<std::int64_t>(has)});
  }
}

// The parameters of such a model have no gradients, so an optimizer that was not prepared passes all of them by. Of whole
// gradients its step is refused.
void Training::warn_of_models_without_optimizer() const {
  const std::vector<AcceleratedOptimizer>& optimizers = prepared_.optimizers;
  for (const auto& model : prepared_.divided_models()) {
    const bool is_stepped =
        std::any_of(optimizers.begin(), optimizers.end(), [&](const auto& each) {
          const StepGate* const gate = Preparation::gate_of(each);
          return gate != nullptr && gate->steps(*model);
        });
    if (is_stepped || !model->has_gradients()) continue;
    prepared_.logger.warning_once(
        "no optimizer that was prepared has the parameters of the model of " +
        model->divided_parameters().front().name +
        ", which got gradients: no step will change them; give the optimizer to prepare(), too");
  }
}

Training::OwnGradients Training::own_gradients(const std::vector<at::Tensor>& parameters) const {
  OwnGradients own;
  const auto models = prepared_.divided_models();
  for (const auto& model : models) model->settle();
  for (const at::Tensor& parameter : parameters) {
    std::optional<at::Tensor> piece;  // also of those in the optimizer's groups
    for (const auto& model : models) {
      if (!piece) piece = model->piece(parameter);
    }
    if (!piece) {
      own.whole.push_back(parameter);
    } else if (piece->defined()) {
      own.pieces.push_back(*std::move(piece));
    }
  }
  // Also where this rank has no piece of a group: others may, and wait for its part.
  own.is_of_divided = !models.empty();
  return own;
}

at::Tensor Training::clip_norm(const std::vector<at::Tensor>& parameters,
                               double max_norm,
                               double norm_type) const {
  check_number(max_norm >= 0, "max_norm", max_norm, "0 or above");
  check_number(!std::isnan(norm_type), "norm_type", norm_type, "a norm: 2, 1 or infinity");
  unscale_all();
  const OwnGradients own = own_gradients(parameters);
  if (steps_ && norm_type == 2) return clip_exactly(own, max_norm);
  if (steps_ && own.is_of_divided && !std::isinf(norm_type)) {
    throw Error(ErrorCode::kUnsupported,
                "norm_type is " + std::to_string(norm_type) +
                    ", of which parts of divided gradients add up to other bits on other ranks",
                "clip by the norm 2 or infinity in reproducible training");
  }
  if (!own.is_of_divided) return clip_gradient_norm_(parameters, max_norm, norm_type);
  if (!(norm_type > 0)) {
    // A rank without a piece does not know of the others'.
    at::Tensor has_pieces = at::full({}, !own.pieces.empty(), at::kInt);
    for (const auto& group : prepared_.mesh().dividing_groups())
      group->all_reduce_(has_pieces, Reduction::kMax, "clip_grad_norm_");
    if (has_pieces.item<int>() == 0) return clip_gradient_norm_(own.whole, max_norm, norm_type);
    throw Error(ErrorCode::kUnsupported,
                "norm_type is " + std::to_string(norm_type) +
                    ", which parts of divided gradients do not add up to",
                "clip by a norm above 0: 2, 1 or infinity");
  }
  return clip_gradient_norm_(
      own.pieces, own.whole, max_norm, norm_type, [&](const at::Tensor& norm) {
        // Without a gradient it is a zero of the CPU.
        return combined_norm(
            prepared_.mesh().dividing_groups(), norm.to(prepared_.state.device()), norm_type);
      });
}

// Of reproducible training: the same bits however gradients are divided.
at::Tensor Training::clip_exactly(const OwnGradients& own, double max_norm) const {
  const auto groups = own.is_of_divided ? prepared_.mesh().dividing_groups()
                                        : std::vector<std::shared_ptr<ProcessGroup>>();
  const at::Tensor norm = exact_norm(own.pieces, own.whole, groups);
  clip_gradients_to_(own.pieces, norm, max_norm);
  clip_gradients_to_(own.whole, norm, max_norm);
  return norm;
}

void Training::clip_value(const std::vector<at::Tensor>& parameters, double clip_value) const {
  check_number(clip_value >= 0, "clip_value", clip_value, "0 or above");
  unscale_all();
  const OwnGradients own = own_gradients(parameters);
  clip_gradient_value_(own.pieces, clip_value);
  clip_gradient_value_(own.whole, clip_value);
}

void Training::unscale_all() const {
  for (const AcceleratedOptimizer& optimizer : prepared_.optimizers) unscale(optimizer);
}

void Training::unscale(const AcceleratedOptimizer& optimizer) const {
  if (prepared_.scaler == nullptr) return;
  if (!gradient_state_.sync_gradients()) {
    throw Error(ErrorCode::kInvalidArgument,
                "fp16 gradients cannot be unscaled while they are being accumulated",
                "clip only when accelerator.sync_gradients() is true");
  }
  optimizer.unscale();
}

void Training::set_trigger() {
  trigger_ = at::full({}, 1, at::TensorOptions(at::kLong).device(prepared_.state.device()));
}

bool Training::check_trigger() {
  at::Tensor raised =
      trigger_.defined()
          ? trigger_
          : at::full({}, 0, at::TensorOptions(at::kLong).device(prepared_.state.device()));
  if (const std::shared_ptr<ProcessGroup> group = prepared_.state.process_group()) {
    group->all_reduce_(raised, Reduction::kMax, "check_trigger");
  }
  trigger_.reset();
  return raised.item<std::int64_t>() != 0;
}

StateDict Training::state_dict() const {
  StateDict state = rng_state();
  state.values[kStepKey] = batch_count_;
  if (steps_) steps_->save(state);
  const auto add = [&](const std::string& prefix, const Stateful& object) {
    add_part(prefix, object, state);
  };
  for_each_hook(prepared_.models, add);
  for_each_local_training(prepared_.models, add);
  return state;
}

void Training::load_state_dict(const StateDict& state) {
  const std::int64_t batch_count = StateReader("the random states", state).integer(kStepKey);
  const auto load = [&](const std::string& prefix, Stateful& object) {
    const StateDict own = part_of(state, prefix);
    if (!own.values.empty()) object.load_state_dict(own);
  };
  for_each_hook(prepared_.models, load);
  for_each_local_training(prepared_.models, load);
  set_rng_state(state);
  if (steps_) steps_->load(state);
  batch_count_ = batch_count;
}

}  // namespace accel::detail
