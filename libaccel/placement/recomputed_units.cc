// How the units are chosen: one plan that keeps all, one that computes all again, and one for each unit that computes it alone
// again, tell how much less the step takes without what a unit holds (what it takes while it runs again is in it), and what that
// costs. Units of one kind, with parameters of equal sizes, share the plan of the first one, if the operations of all of them are
// so many times its own: then they see inputs of equal sizes, too. choose_recomputed() finds the cheapest choice for these numbers.
// They are not quite those of a whole step, whose peak may be elsewhere, as in the optimizer's. So the choice is planned, and while
// it does not fit, the next choice has to hold less.

#include <algorithm>
#include <cmath>
#include <set>
#include <string>
#include <unordered_map>
#include <utility>

#include <ATen/core/grad_mode.h>
#include <c10/util/StringUtil.h>
#include <torch/nn/module.h>

#include <accel/error.h>
#include <accel/recomputed_units.h>

#include "libaccel/engine/recompute/unit_forward.h"
#include "libaccel/engine/sharding/wrap_policy.h"
#include "libaccel/interception/kernel_scope.h"
#include "libaccel/planning/recompute_choice.h"

namespace accel {

struct RecomputedUnits::State {
  // Units as numbers from 0 on.
  recompute::UnitOfParameter all;
  std::shared_ptr<const recompute::UnitOfParameter> chosen;
  std::optional<KeptOperators> keep;
  std::vector<bool> is_recomputed;
  bool has_run = false;
  std::vector<std::size_t> kinds;  // by unit; those of one have parameters of equal sizes
  std::vector<std::string> names;
};

struct RecomputedUnits::Forward::Parts {
  std::optional<recompute::UnitForward> forward;
};

RecomputedUnits::Forward::Forward(std::unique_ptr<Parts> parts) : parts_(std::move(parts)) {}

RecomputedUnits::Forward::~Forward() = default;

RecomputedUnits::Forward::Forward(Forward&&) noexcept = default;

namespace {

// The path of the module around it: "blocks.0" of "blocks.0.norm".
std::string path_around(const std::string& path) {
  const std::size_t end = path.rfind('.');
  return end == std::string::npos ? std::string() : path.substr(0, end);
}

}  // namespace

RecomputedUnits::RecomputedUnits(const torch::nn::Module& model,
                                 const std::vector<std::string>& classes,
                                 const ActivationCheckpointOptions& options)
    : state_(std::make_unique<State>()) {
  sharding::FsdpSettings settings;
  settings.wrap = AutoWrapPolicy::kTransformerBasedWrap;
  settings.transformer_classes = classes;
  const auto groups = sharding::wrap_groups(model, settings);
  std::unordered_map<int, int> numbers;
  std::vector<std::string> sizes;  // of the parameters of each unit
  for (const auto& item : model.named_parameters()) {
    const at::Tensor& parameter = item.value();
    const auto found = groups.find(parameter.unsafeGetTensorImpl());
    if (found == groups.end() || found->second == sharding::kRootGroup) continue;
    const int number =
        numbers.try_emplace(found->second, static_cast<int>(numbers.size())).first->second;
    state_->all.emplace(found->first, number);
    sizes.resize(numbers.size());
    state_->names.resize(numbers.size(), path_around(item.key()));
    std::string& name = state_->names[static_cast<std::size_t>(number)];
    while (!name.empty() && !item.key().starts_with(name + ".")) name = path_around(name);
    sizes[static_cast<std::size_t>(number)] +=
        c10::str(parameter.sizes(), parameter.scalar_type(), parameter.requires_grad(), ' ');
  }
  std::unordered_map<std::string, std::size_t> kinds;
  for (const std::string& of_unit : sizes)
    state_->kinds.push_back(kinds.try_emplace(of_unit, kinds.size()).first->second);
  for (const auto& group : groups) state_->all.try_emplace(group.first, recompute::kNoUnit);
  state_->keep = options.keep;
  set_recomputed(std::vector<bool>(numbers.size(), true));
}

RecomputedUnits::~RecomputedUnits() = default;

std::size_t RecomputedUnits::num_units() const noexcept {
  return state_->is_recomputed.size();
}

const std::vector<std::string>& RecomputedUnits::names() const noexcept {
  return state_->names;
}

void RecomputedUnits::set_recomputed(const std::vector<bool>& is_recomputed) {
  if (!state_->is_recomputed.empty() && is_recomputed.size() != num_units()) {
    throw Error(ErrorCode::kShapeMismatch,
                "a choice for " + std::to_string(is_recomputed.size()) +
                    " units, and the model has " + std::to_string(num_units()),
                "give one for each of RecomputedUnits::num_units()");
  }
  auto chosen = std::make_shared<recompute::UnitOfParameter>(state_->all);
  for (auto& [parameter, unit] : *chosen) {
    if (unit != recompute::kNoUnit && !is_recomputed[static_cast<std::size_t>(unit)])
      unit = recompute::kNoUnit;
  }
  state_->chosen = std::move(chosen);
  state_->is_recomputed = is_recomputed;
}

const std::vector<bool>& RecomputedUnits::recomputed() const noexcept {
  return state_->is_recomputed;
}

RecomputedUnits::Forward RecomputedUnits::forward() {
  auto parts = std::make_unique<Forward::Parts>();
  const auto& chosen = state_->is_recomputed;
  if (!at::GradMode::is_enabled() || std::find(chosen.begin(), chosen.end(), true) == chosen.end())
    return Forward(std::move(parts));
  // In a plan there are no values to compare.
  const bool has_values = interception::kernel_handler() == nullptr;
  parts->forward.emplace(state_->chosen,
                         has_values && !state_->has_run ? recompute::Comparison::kValues
                                                        : recompute::Comparison::kShapes,
                         state_->keep);
  state_->has_run = state_->has_run || has_values;
  return Forward(std::move(parts));
}

// ---- what fits ----

namespace {

using Ways = std::vector<planning::RegionWay>;

class UnitPlans {
 public:
  UnitPlans(RecomputedUnits& units,
            torch::nn::Module& model,
            torch::optim::Optimizer* optimizer,
            const std::function<void()>& step)
      : units_(units), model_(model), optimizer_(optimizer), step_(step) {}

  [[nodiscard]] StepPlan plan(const std::vector<bool>& choice) {
    units_.set_recomputed(choice);
    return {model_, optimizer_, step_};
  }

  // What each unit holds when it is kept or not, and its operations.
  [[nodiscard]] std::vector<Ways> ways(const StepPlan& kept,
                                       const std::vector<std::size_t>& kinds) {
    std::vector<Ways> all(kinds.size());
    for (std::size_t unit = 0; unit < kinds.size(); ++unit) {
      if (!all[unit].empty()) continue;
      std::vector<bool> alone(kinds.size(), false);
      alone[unit] = true;
      all[unit] = ways_of(kept, plan(alone));
      std::vector<bool> alike(kinds.size(), false);
      for (std::size_t other = 0; other < kinds.size(); ++other)
        alike[other] = kinds[other] == kinds[unit];
      if (!are_equal(all[unit], alike, kept)) continue;
      for (std::size_t other = 0; other < kinds.size(); ++other)
        if (alike[other]) all[other] = all[unit];
    }
    return all;
  }

 private:
  static Ways ways_of(const StepPlan& kept, const StepPlan& one) {
    const std::int64_t saved =
        std::max<std::int64_t>(0, kept.memory().activations - one.memory().activations);
    return {{saved, saved, 0}, {0, 0, one.flops() - kept.flops()}};
  }

  // Whether the units of `alike` are as the first one. Without operations more that cannot be told.
  [[nodiscard]] bool are_equal(const Ways& first,
                               const std::vector<bool>& alike,
                               const StepPlan& kept) {
    const auto count = std::count(alike.begin(), alike.end(), true);
    constexpr std::ptrdiff_t kWorthAPlan = 2;
    const bool can_tell = first.back().flops > 0;
    if (count <= kWorthAPlan || !can_tell || is_uneven_.contains(alike)) return false;
    const double all = plan(alike).flops() - kept.flops();
    const double expected = static_cast<double>(count) * first.back().flops;
    if (std::abs(all - expected) <= 1e-9 * kept.flops()) return true;
    is_uneven_.insert(alike);
    return false;
  }

  RecomputedUnits& units_;
  torch::nn::Module& model_;
  torch::optim::Optimizer* optimizer_;
  const std::function<void()>& step_;
  std::set<std::vector<bool>> is_uneven_;  // kinds whose units differ
};

}  // namespace

std::optional<FittedUnits> fit_recomputed_units(RecomputedUnits& units,
                                                torch::nn::Module& model,
                                                torch::optim::Optimizer* optimizer,
                                                const std::function<void()>& step,
                                                std::int64_t max_bytes,
                                                const PlannedRun& run) {
  UnitPlans plans(units, model, optimizer, step);
  const std::size_t count = units.num_units();
  const std::vector<bool> none(count, false);
  const StepPlan kept = plans.plan(none);
  const PlannedMemory with_all = kept.memory(run);
  const auto fitted = [&](const std::vector<bool>& choice, const StepPlan& plan) {
    units.set_recomputed(choice);
    return FittedUnits{choice, plan.memory(run), plan.flops() - kept.flops(), kept.flops()};
  };
  if (with_all.peak <= max_bytes) return fitted(none, kept);
  const std::vector<bool> all(count, true);
  const StepPlan recomputed = plans.plan(all);
  if (recomputed.memory(run).peak > max_bytes) return std::nullopt;

  const auto ways = plans.ways(kept, units.state_->kinds);
  std::int64_t held = 0;
  std::int64_t most_held = 0;
  for (const auto& region : ways) {
    held += region.front().held;
    most_held = std::max(most_held, region.front().held);
  }
  // A unit looser than the sums say: units together may save more than each alone.
  std::int64_t budget = std::max<std::int64_t>(0, held - (with_all.peak - max_bytes) + most_held);
  while (const auto choice = planning::choose_recomputed(ways, budget)) {
    std::vector<bool> is_recomputed;
    for (const std::size_t way : choice->ways) is_recomputed.push_back(way == 1);
    const StepPlan plan = plans.plan(is_recomputed);
    if (plan.memory(run).peak <= max_bytes) return fitted(is_recomputed, plan);
    budget = choice->peak - 1;
  }
  return fitted(all, recomputed);
}

}  // namespace accel
