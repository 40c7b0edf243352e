#include "libaccel/engine/sharding/sharded_optimizer.h"

#include <algorithm>
#include <new>
#include <set>
#include <string>
#include <typeinfo>

#include <c10/util/Type.h>
#include <torch/optim/optimizer.h>

#include <accel/error.h>
#include <accel/types.h>

#include "libaccel/engine/optim/gradient_clipping.h"
#include "libaccel/engine/process/process_group.h"
#include "libaccel/engine/sharding/sharded_model.h"
#include "libaccel/tensors/alignment.h"
#include "libaccel/tensors/optimizer_traits.h"
#include "libaccel/tensors/unique_parameters.h"

namespace accel::sharding {
namespace {

using torch::optim::Optimizer;

bool has_parameter_of(const std::vector<std::vector<at::Tensor>>& groups,
                      const ShardedModel& model) {
  return std::any_of(groups.begin(), groups.end(), [&](const std::vector<at::Tensor>& group) {
    return std::any_of(group.begin(), group.end(), [&](const at::Tensor& parameter) {
      return model.owns(parameter);
    });
  });
}

// Whether the state is what the optimizer's constructor makes, before any step.
bool is_fresh(torch::optim::OptimizerParamState& state) {
  const OptimizerTraits* const traits = traits_of(state);
  return traits != nullptr && traits->initial_state != nullptr &&
         *OptimizerStateView(*traits, state).numbers.front() == 0;
}

void check_kind(const Optimizer& optimizer, bool has_whole_tensors) {
  const std::string type = c10::demangle(typeid(optimizer).name());
  const OptimizerTraits* const base = base_traits_of(optimizer);
  if (base != nullptr && !has_state_by_parameter(*base)) {
    throw Error(ErrorCode::kUnsupported,
                "an optimizer of type " + type +
                    " cannot work on shards: its steps need all parameters at once",
                "use sharding_strategy NO_SHARD");
  }
  if (has_whole_tensors || is_element_wise(optimizer)) return;
  throw Error(ErrorCode::kUnsupported,
              "an optimizer of type " + type + " cannot work on parts of tensors: it is none of " +
                  optimizer_names(&is_element_wise),
              "set shard_by_tensor = true in the FullyShardedDataParallelPlugin, or use NO_SHARD");
}

void check_optimizer(Optimizer& optimizer, const ShardedModel& model) {
  check_kind(optimizer, model.is_cut_by_tensor());
  for (const NamedParameter& parameter : model.parameters()) {
    const auto state = optimizer.state().find(parameter.tensor.unsafeGetTensorImpl());
    if (state == optimizer.state().end() || is_fresh(*state->second)) continue;
    throw Error(
        ErrorCode::kUnsupported,
        "the optimizer has stepped before prepare(): its state of " + parameter.name +
            " cannot be divided",
        "call prepare() before the first step, and load_state() to go on from a checkpoint");
  }
}

// For the pieces, what the optimizer's constructor does for each parameter.
void make_initial_states(Optimizer& optimizer) {
  const OptimizerTraits* const traits = traits_of(optimizer);
  if (traits == nullptr || traits->initial_state == nullptr) return;
  for (auto& group : optimizer.param_groups()) {
    for (const at::Tensor& parameter : group.params()) {
      auto& state = optimizer.state()[parameter.unsafeGetTensorImpl()];
      if (state == nullptr) state = traits->initial_state(group.options(), parameter);
    }
  }
}

}  // namespace

ShardedOptimizer::ShardedOptimizer(Optimizer& optimizer) : optimizer_(optimizer) {
  remove_repeated_parameters(optimizer);
  for (auto& group : optimizer.param_groups()) {
    const std::vector<at::Tensor>& parameters = group.params();
    if (std::any_of(parameters.begin(), parameters.end(), &ParameterClaim::is_left_over)) {
      throw Error(ErrorCode::kUnsupported,
                  "the optimizer has the shards of a model that is not prepared any more",
                  "construct it anew, with the parameters of the module");
    }
    whole_groups_.push_back(parameters);
  }
}

// None when its parameters are empty: those are in no unit.
std::vector<std::size_t> ShardedOptimizer::units_in(const ShardedModel& model) const {
  std::set<std::size_t> units;
  for (const std::vector<at::Tensor>& group : whole_groups_) {
    for (const at::Tensor& parameter : group) {
      if (parameter.numel() > 0 && model.owns(parameter)) units.insert(model.unit_of(parameter));
    }
  }
  return {units.begin(), units.end()};
}

std::shared_ptr<ShardedOptimizer> ShardedOptimizer::rewrite(
    Optimizer& optimizer,
    std::shared_ptr<ShardedOptimizer> present,
    const std::vector<std::shared_ptr<ShardedModel>>& models) {
  auto sharded = present != nullptr ? present : std::make_shared<ShardedOptimizer>(optimizer);
  bool is_changed = false;
  for (const auto& model : models) {
    const bool is_known = std::any_of(sharded->models_.begin(),
                                      sharded->models_.end(),
                                      [&](const auto& entry) { return entry.first == model; });
    if (is_known) continue;
    if (!has_parameter_of(sharded->whole_groups_, *model)) continue;
    check_optimizer(optimizer, *model);
    for (const NamedParameter& parameter : model->parameters()) {
      optimizer.state().erase(parameter.tensor.unsafeGetTensorImpl());
    }
    sharded->models_.emplace_back(model, sharded->units_in(*model));
    is_changed = true;
  }
  if (!is_changed) return present;
  for (std::size_t g = 0; g < sharded->whole_groups_.size(); ++g) {
    std::vector<at::Tensor> pieces;
    for (const at::Tensor& parameter : sharded->whole_groups_[g]) {
      const ShardedModel* model = sharded->model_of(parameter);
      if (model == nullptr) {
        pieces.push_back(parameter);
      } else if (const ShardPiece* piece = model->piece_of(parameter)) {
        pieces.push_back(piece->tensor);
      }
    }
    optimizer.param_groups()[g].params() = std::move(pieces);
  }
  make_initial_states(optimizer);
  sharded->note_states();
  return sharded;
}

ShardedModel* ShardedOptimizer::model_of(const at::Tensor& parameter) const {
  const auto found = std::find_if(models_.begin(), models_.end(), [&](const auto& entry) {
    return entry.first->owns(parameter);
  });
  return found == models_.end() ? nullptr : found->first.get();
}

bool ShardedOptimizer::steps(const ModelSync& model) const {
  return std::any_of(models_.begin(), models_.end(), [&](const auto& entry) {
    return entry.first.get() == &model;
  });
}

void ShardedOptimizer::settle() {
  for (const auto& [model, units] : models_) model->settle();
}

void ShardedOptimizer::before_step() {
  if (optimizer_.param_groups().size() != whole_groups_.size()) {
    throw Error(ErrorCode::kUnsupported,
                "the optimizer had " + std::to_string(whole_groups_.size()) +
                    " parameter groups when it was prepared and has " +
                    std::to_string(optimizer_.param_groups().size()) + " now",
                "add parameter groups before prepare()");
  }
  refuse_foreign_states();
  for (const auto& [model, units] : models_) model->before_write();
}

void ShardedOptimizer::note_states() {
  states_.clear();
  if (!has_state_by_parameter(optimizer_))
    return;  // a class of the user's may make them whenever it likes
  for (const auto& group : optimizer_.param_groups()) {
    for (const at::Tensor& parameter : group.params()) {
      if (!is_piece(parameter)) continue;
      const auto state = optimizer_.state().find(parameter.unsafeGetTensorImpl());
      states_[parameter.unsafeGetTensorImpl()] =
          state == optimizer_.state().end() ? nullptr : state->second.get();
    }
  }
}

// torch::load() makes new ones, of whichever rank's pieces are in the file: often of the same shapes.
void ShardedOptimizer::refuse_foreign_states() const {
  for (const auto& [piece, state] : optimizer_.state()) {
    const auto known = states_.find(piece);
    if (known == states_.end() || known->second == state.get()) continue;
    throw Error(
        ErrorCode::kUnsupported,
        "the optimizer has states that neither its steps nor load_state() have made: a file "
        "that torch::load() reads has those of the pieces of the rank that wrote it",
        "use save_state() and load_state(); to begin anew, call state().clear() of the "
        "optimizer");
  }
}

void ShardedOptimizer::after_step() {
  note_states();
  for (const auto& [model, units] : models_) model->publish(units);
}

void ShardedOptimizer::was_stepped(const at::Tensor& piece,
                                   std::int64_t begin,
                                   std::int64_t numel) {
  for (const auto& [model, units] : models_) model->was_stepped(piece, begin, numel);
}

void ShardedOptimizer::abandon_step() noexcept {
  try {
    note_states();                   // those that the update made before it threw are its own
  } catch (const std::bad_alloc&) {  // the error of the update counts
  }
  for (const auto& [model, units] : models_) model->abandon_write();
}

void ShardedOptimizer::combine_overflow(at::Tensor& found_inf) {
  for (const auto& group : models_.front().first->mesh().dividing_groups())
    group->all_reduce_(found_inf, Reduction::kMax, "comparing which gradients are finite");
}

// Without a gradient a rank has a zero of the CPU.
at::Tensor ShardedOptimizer::combine_norm(const at::Tensor& norm, double norm_type) {
  const ShardedModel& model = *models_.front().first;
  return combined_norm(model.mesh().dividing_groups(), norm.to(model.device()), norm_type);
}

void ShardedOptimizer::clear_gradients() {
  for (const std::vector<at::Tensor>& group : whole_groups_) {
    for (const at::Tensor& parameter : group) {
      if (ShardedModel* const model = model_of(parameter)) model->clear_gradient(parameter);
    }
  }
  for (const auto& [model, units] : models_) model->gradients_were_cleared();
}

// Parameters and shards begin at multiples of 64 bytes of their unit.
bool ShardedOptimizer::is_piece(const at::Tensor& parameter) const {
  static_assert(kCacheLine == 64);
  return std::any_of(models_.begin(), models_.end(), [&](const auto& entry) {
    return entry.first->is_piece(parameter);
  });
}

}  // namespace accel::sharding
