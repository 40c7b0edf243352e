// Accelerator::plan(): the options of an Accelerator as a PlannedRun, and its part of a step.

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include <torch/nn/module.h>

#include <accel/error.h>
#include <accel/plan.h>

#include "libaccel/api/accelerator/accelerator_impl.h"
#include "libaccel/engine/process/process_group.h"
#include "libaccel/engine/recompute/unit_forward.h"

namespace accel {
namespace {

PlannedStrategy planned_strategy(const sharding::FsdpSettings& settings) {
  if (settings.keeps_whole_gradients) return PlannedStrategy::kZero1;
  switch (settings.strategy) {
    case ShardingStrategy::kNoShard:
      return PlannedStrategy::kCopies;
    case ShardingStrategy::kShardGradOp:
    case ShardingStrategy::kHybridShardZero2:
      return PlannedStrategy::kZero2;
    case ShardingStrategy::kFullShard:
    case ShardingStrategy::kHybridShard:
      return PlannedStrategy::kZero3;
  }
  return PlannedStrategy::kCopies;
}

// Where groups of ranks have a copy each, of one of them.
PlannedRun planned_run(const detail::Preparation& prepared) {
  PlannedRun run;
  const std::shared_ptr<ProcessGroup> world = prepared.state.process_group();
  if (prepared.fsdp) {
    run.strategy = planned_strategy(*prepared.fsdp);
    run.optimizer_on_disk = !prepared.fsdp->optimizer_folder.empty();
  }
  if (world == nullptr || world->size() == 1) return run;
  const int of_node = std::max(1, prepared.state.local_num_processes());
  const int dividing = sharding::mesh_shape(prepared.fsdp, *world).shard;
  run.num_processes = run.strategy == PlannedStrategy::kCopies ? world->size() : dividing;
  if (run.num_processes % of_node == 0) run.num_machines = run.num_processes / of_node;
  return run;
}

[[noreturn]] void refuse_plan(const std::string& what, const char* remedy) {
  throw Error(ErrorCode::kUnsupported, "a step cannot be planned " + what, remedy);
}

void refuse_unplanned(const detail::Preparation& prepared, const PlannedRun& run) {
  if (!prepared.state.device().is_cpu())
    refuse_plan("on " + prepared.state.device().str(), "plan with cpu = true");
  if (prepared.recipe.is_of_shards() && run.num_processes > 1 &&
      run.strategy != PlannedStrategy::kCopies) {
    refuse_plan("with a mixed_precision_policy",
                "plan without it, or set mixed_precision of the Accelerator");
  }
  if (prepared.fsdp && prepared.fsdp->steps_in_backward)
    refuse_plan("with step_in_backward", "plan without it: it takes the new parameters more");
}

bool has_16_bits(const at::Tensor& parameter) {
  return parameter.requires_grad() && c10::isReducedFloatingType(parameter.scalar_type());
}

// What surrounds the forwards of a model that is not prepared yet, as those of a prepared one.
class PlannedForward {
 public:
  PlannedForward(const detail::Preparation& prepared, const torch::nn::Module& model)
      : prepared_(prepared) {
    if (!prepared.fsdp || !prepared.fsdp->recomputes_activations) return;
    units_ = std::make_shared<const recompute::UnitOfParameter>(
        detail::recomputed_units(model, *prepared.fsdp));
    keep_ = detail::kept_operators(*prepared.fsdp);
  }

  [[nodiscard]] at::Tensor run(const std::function<at::Tensor()>& forward) const {
    const Autocast autocast(autocast_options(
        prepared_.recipe, prepared_.options.autocast, prepared_.state.device().type()));
    std::optional<recompute::UnitForward> units;
    if (units_ != nullptr) units.emplace(units_, recompute::Comparison::kShapes, keep_);
    return forward();
  }

 private:
  const detail::Preparation& prepared_;
  std::shared_ptr<const recompute::UnitOfParameter> units_;
  std::optional<KeptOperators> keep_;
};

// Whether it was prepared.
bool is_prepared(const detail::Preparation& prepared, const torch::nn::Module& model) {
  const auto found = std::ranges::find_if(
      prepared.models, [&](const auto& runtime) { return runtime->module().get() == &model; });
  if (found == prepared.models.end()) return false;
  if ((*found)->sync() != nullptr)
    refuse_plan("of a model that several ranks train already", "plan it before prepare()");
  return true;
}

}  // namespace

RunPlan Accelerator::plan(torch::nn::Module& model,
                          torch::optim::Optimizer* optimizer,
                          const std::function<at::Tensor()>& forward) const {
  const detail::Preparation& prepared = impl_->preparation;
  const PlannedRun run = planned_run(prepared);
  refuse_unplanned(prepared, run);
  const auto parameters = model.parameters();
  if (prepared.recipe.widens_parameters && std::ranges::any_of(parameters, has_16_bits))
    refuse_plan("of a model in 16 bits, whose parameters prepare() makes fp32",
                "call model->to(at::kFloat) before");
  const bool has_own_forward = is_prepared(prepared, model);
  const PlannedForward around(prepared, model);
  const int num_batches = gradient_accumulation_steps();
  StepPlan step(model, optimizer, [&] {
    for (int batch = 0; batch < num_batches; ++batch) {
      const at::Tensor loss = has_own_forward ? forward() : around.run(forward);
      (num_batches == 1 ? loss : loss / num_batches).backward();
    }
  });
  const PlannedMemory memory = step.memory(run);
  return {.step = std::move(step), .run = run, .memory = memory};
}

}  // namespace accel
