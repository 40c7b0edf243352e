#include "libaccel/engine/gradients/gradient_exchange.h"

#include <algorithm>
#include <string>
#include <utility>

#include <ATen/core/grad_mode.h>

#include "libaccel/engine/process/join_roll.h"
#include "libaccel/interception/backward_hooks.h"

namespace accel {

namespace {

// Ranks without batches take part.
void announce_exchange(const GradientExchange* exchange) {
  JoinRoll* const roll = JoinRoll::of_training();
  if (roll == nullptr) return;
  roll->require_named(exchange);
  roll->announce_of(exchange, {.call = JoinRoll::Call::kExchange});
}

}  // namespace

Error GradientPolicy::second_gradient(const NamedParameter& parameter) const {
  return Error(ErrorCode::kInvalidArgument,
               "the parameter " + parameter.name + " got a second gradient for one forward pass",
               "add the losses and run one backward pass; with checkpointed activations set "
               "AcceleratorOptions.ddp.static_graph = true");
}

Error missing_gradients(const std::vector<NamedParameter>& parameters,
                        const std::vector<std::size_t>& missing,
                        int rank) {
  std::string listed;
  for (const std::size_t index : missing) {
    if (!listed.empty()) listed += ", ";
    listed += index < parameters.size() ? parameters[index].name : std::to_string(index);
  }
  return Error(ErrorCode::kInvalidArgument,
               "the backward pass before gave these parameters no gradient on rank " +
                   std::to_string(rank) + ": " + listed,
               "use them in the loss, freeze them with set_requires_grad(false), or set "
               "AcceleratorOptions.ddp.find_unused_parameters = true");
}

GradientExchange::GradientExchange(std::vector<NamedParameter> parameters,
                                   GradientPolicy& policy,
                                   int rank,
                                   Events events)
    : parameters_(std::move(parameters)),
      policy_(policy),
      rank_(rank),
      events_(std::move(events)),
      state_(policy.rules()),
      hooks_(parameters_, [this](std::size_t parameter, const at::Tensor& arrived) {
        on_gradient(parameter, arrived);
      }) {}

void GradientExchange::before_forward() {
  if (state_.phase() == Phase::kFilling && !state_.is_whole())
    throw missing_gradients(parameters_, state_.missing(), rank_);
  policy_.before_forward(state_.syncs());
}

void GradientExchange::after_forward(const std::vector<at::Tensor>& outputs) {
  has_come_ = false;  // a backward may have ended before the first gradient of these parameters
  state_.forward();
  policy_.before_backward(state_.syncs(), outputs);
}

void GradientExchange::arm() {
  has_come_ = false;
  state_.arm();
  policy_.before_backward(/*exchanges=*/true, {});
}

void GradientExchange::on_gradient(std::size_t parameter, const at::Tensor& arrived) {
  const bool fills_up = state_.rules().missing == Missing::kIsZero;
  const bool is_gradient = arrived.defined() && parameters_[parameter].tensor.grad().defined();
  if (fills_up && !is_gradient) return;
  const bool is_late = state_.phase() == Phase::kUndecided;
  if (is_late && state_.exchanges() && events_.unannounced) events_.unannounced(parameter);
  await_end();
  if (!state_.exchanges()) return;
  const at::NoGradGuard no_grad;
  if (state_.phase() != Phase::kFilling && !begin(/*has_gradients=*/true, is_late)) return;
  take(parameter, arrived);
  reduce(/*at_end=*/false);
}

// Behind what LibTorch's Reducer does at the end, which it asks for while gradients come. Accelerator::backward() itself abandons
// a backward that an exception ends.
void GradientExchange::await_end() {
  if (std::exchange(has_come_, true) || is_in_backward_) return;
  const auto give_up = [this] { abandon(); };
  interception::call_at_end_of_backward(
      [this, give_up] { interception::call_at_end_of_backward(events_.at_own_end, give_up); },
      give_up);
}

bool GradientExchange::begin(bool has_gradients, bool is_late) {
  announce_exchange(this);
  if (!policy_.begin(has_gradients)) return false;
  state_.begin(is_late);
  return true;
}

void GradientExchange::take(std::size_t parameter, const at::Tensor& arrived) {
  if (!state_.arrive(parameter) && !state_.rules().allows_second)
    throw policy_.second_gradient(parameters_[parameter]);
  policy_.take(parameter, arrived);
}

void GradientExchange::reduce(bool at_end) {
  while (const auto group = state_.next_group(at_end)) policy_.reduce(*group, state_.arrived());
}

GradientExchange::End GradientExchange::end_backward(bool has_others) {
  is_in_backward_ = false;
  policy_.end_backward();
  const End without = std::exchange(has_come_, false) ? End::kNotExchanged : End::kNothingCame;
  const bool fills_up = state_.rules().missing == Missing::kIsZero;
  if (state_.phase() == Phase::kLocal && without == End::kNotExchanged) {
    state_.end();
    return without;
  }
  if (fills_up ? !fill_up(has_others)
               : without == End::kNothingCame || state_.phase() != Phase::kFilling)
    return without;
  if (!state_.is_whole()) {
    if (!state_.is_late()) return without;
    const Error error = missing_gradients(parameters_, state_.missing(), rank_);
    abandon();
    throw error;
  }
  state_.end();
  return state_.is_late() ? End::kExchangedLate : End::kExchanged;
}

// What hooks have left out is added (gradients of batches without sync whose parameters this one did not use), and what is
// missing counts as zero. False: nothing is exchanged.
bool GradientExchange::fill_up(bool has_others) {
  if (!state_.exchanges()) return false;
  const at::NoGradGuard no_grad;
  if (state_.phase() != Phase::kFilling && !begin(has_others || has_gradients(), /*is_late=*/false))
    return false;
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    if (parameters_[i].tensor.grad().defined()) take(i, {});
  }
  reduce(/*at_end=*/true);
  policy_.finish(state_.arrived());
  return true;
}

bool GradientExchange::has_gradients() const {
  return std::any_of(parameters_.begin(), parameters_.end(), [](const NamedParameter& parameter) {
    return parameter.tensor.grad().defined();
  });
}

void GradientExchange::abandon() noexcept {
  is_in_backward_ = has_come_ = false;
  if (state_.abandon()) policy_.drop();
}

}  // namespace accel
