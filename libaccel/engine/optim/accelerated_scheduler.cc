#include <algorithm>
#include <bit>
#include <cstdint>
#include <optional>
#include <utility>

#include <accel/error.h>
#include <accel/optim.h>
#include <accel/state.h>

#include "libaccel/engine/process/join_roll.h"

namespace accel {
namespace {

// Ranks without batches take part.
void announce_rates(const Scheduler& scheduler,
                    const GradientState& gradient_state,
                    std::optional<double> metric) {
  JoinRoll* const roll = JoinRoll::of_training();
  if (roll == nullptr) return;
  roll->announce_of(&scheduler,
                    {.call = JoinRoll::Call::kScheduler,
                     .a = static_cast<std::int64_t>(metric.has_value()),
                     .b = std::bit_cast<std::int64_t>(metric.value_or(0)),
                     .most = static_cast<std::int64_t>(gradient_state.sync_gradients())});
}

}  // namespace

struct AcceleratedScheduler::Shared {
  std::shared_ptr<Scheduler> scheduler;
  std::vector<AcceleratedOptimizer> optimizers;
  AcceleratedSchedulerOptions options;
  PartialState process;
  GradientState gradient_state;
};

AcceleratedScheduler::AcceleratedScheduler(std::shared_ptr<Scheduler> scheduler,
                                           std::vector<AcceleratedOptimizer> optimizers,
                                           AcceleratedSchedulerOptions options) {
  if (scheduler == nullptr) {
    throw Error(ErrorCode::kInvalidArgument,
                "prepare() got a null scheduler",
                "construct the scheduler before prepare()");
  }
  shared_ = std::make_shared<Shared>(Shared{
      std::move(scheduler), std::move(optimizers), options, PartialState(), GradientState()});
}

template <typename Step>
void AcceleratedScheduler::step_with(Step step) const {
  const Shared& shared = *shared_;
  Scheduler& scheduler = *shared.scheduler;
  if (!shared.options.step_with_optimizer) {
    step(scheduler);
    return;
  }
  if (!shared.gradient_state.sync_gradients()) {
    if (shared.gradient_state.adjust_scheduler()) scheduler.count_step();
    return;
  }
  const bool any_skipped = std::any_of(
      shared.optimizers.begin(),
      shared.optimizers.end(),
      [](const AcceleratedOptimizer& optimizer) { return optimizer.step_was_skipped(); });
  if (any_skipped) return;
  if (shared.options.split_batches || !scheduler.counts_batches()) {
    step(scheduler);
    return;
  }
  const int num_steps = shared.process.num_processes();
  for (int i = 0; i < num_steps && scheduler.may_step(); ++i) step(scheduler);
}

void AcceleratedScheduler::step() const {
  announce_rates(*shared_->scheduler, shared_->gradient_state, std::nullopt);
  step_with([](Scheduler& scheduler) { scheduler.step(); });
}

void AcceleratedScheduler::step(double metric) const {
  announce_rates(*shared_->scheduler, shared_->gradient_state, metric);
  step_with([metric](Scheduler& scheduler) { scheduler.step(metric); });
}

Scheduler& AcceleratedScheduler::scheduler() const noexcept {
  return *shared_->scheduler;
}

void AcceleratedScheduler::set_optimizers(std::vector<AcceleratedOptimizer> optimizers) const {
  shared_->optimizers = std::move(optimizers);
}

}  // namespace accel
