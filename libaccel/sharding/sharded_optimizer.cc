#include "libaccel/sharding/sharded_optimizer.h"

#include <algorithm>
#include <set>
#include <string>
#include <typeinfo>

#include <ATen/ops/full_like.h>
#include <c10/util/Type.h>
#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>

#include <accel/error.h>
#include <accel/types.h>

#include "libaccel/process/process_group.h"
#include "libaccel/sharding/sharded_model.h"

namespace accel::sharding {
namespace {

using torch::optim::Optimizer;

bool is_element_wise(const Optimizer& optimizer) {
  const std::type_info& type = typeid(optimizer);
  return type == typeid(torch::optim::SGD) || type == typeid(torch::optim::Adam) ||
         type == typeid(torch::optim::AdamW) || type == typeid(torch::optim::RMSprop) ||
         type == typeid(torch::optim::Adagrad);
}

void check(Optimizer& optimizer) {
  if (!is_element_wise(optimizer)) {
    throw Error(ErrorCode::kUnsupported,
                "an optimizer of type " + c10::demangle(typeid(optimizer).name()) +
                    " cannot work on shards: it is none of SGD, Adam, AdamW, RMSprop, Adagrad",
                "use one of these, or sharding_strategy NO_SHARD");
  }
  // Adagrad makes its states with the optimizer; they are made anew for the pieces.
  if (!optimizer.state().empty() && typeid(optimizer) != typeid(torch::optim::Adagrad)) {
    throw Error(
        ErrorCode::kUnsupported,
        "the optimizer has stepped before prepare(): its state cannot be divided",
        "call prepare() before the first step, and load_state() to go on from a checkpoint");
  }
}

// What Adagrad's constructor does for each parameter.
void make_adagrad_states(Optimizer& optimizer) {
  if (typeid(optimizer) != typeid(torch::optim::Adagrad)) return;
  optimizer.state().clear();
  for (auto& group : optimizer.param_groups()) {
    const auto& options = dynamic_cast<const torch::optim::AdagradOptions&>(group.options());
    for (const at::Tensor& parameter : group.params()) {
      auto state = std::make_unique<torch::optim::AdagradParamState>();
      state->step(0);
      state->sum(at::full_like(
          parameter.data(), options.initial_accumulator_value(), at::MemoryFormat::Preserve));
      optimizer.state()[parameter.unsafeGetTensorImpl()] = std::move(state);
    }
  }
}

}  // namespace

std::shared_ptr<ShardedOptimizer> ShardedOptimizer::rewrite(
    Optimizer& optimizer, const std::vector<std::shared_ptr<ShardedModel>>& models) {
  auto sharded = std::make_shared<ShardedOptimizer>();
  for (const auto& model : models) {
    std::set<std::size_t> units;
    for (auto& group : optimizer.param_groups()) {
      for (const at::Tensor& parameter : group.params()) {
        if (model->owns(parameter)) units.insert(model->unit_of(parameter));
      }
    }
    if (!units.empty())
      sharded->models_.emplace_back(model, std::vector<std::size_t>(units.begin(), units.end()));
  }
  if (sharded->models_.empty()) return nullptr;
  check(optimizer);
  for (auto& group : optimizer.param_groups()) {
    sharded->whole_groups_.push_back(group.params());
    std::vector<at::Tensor> pieces;
    for (const at::Tensor& parameter : group.params()) {
      const ShardedModel* model = sharded->model_of(parameter);
      if (model == nullptr) {
        pieces.push_back(parameter);
      } else if (const ShardPiece* piece = model->piece_of(parameter)) {
        pieces.push_back(piece->tensor);
      }
    }
    group.params() = std::move(pieces);
  }
  make_adagrad_states(optimizer);
  return sharded;
}

ShardedModel* ShardedOptimizer::model_of(const at::Tensor& parameter) const {
  const auto found = std::find_if(models_.begin(), models_.end(), [&](const auto& entry) {
    return entry.first->owns(parameter);
  });
  return found == models_.end() ? nullptr : found->first.get();
}

void ShardedOptimizer::settle() {
  for (const auto& [model, units] : models_) model->settle();
}

void ShardedOptimizer::before_step() {
  for (const auto& [model, units] : models_) model->before_write();
}

void ShardedOptimizer::after_step() {
  for (const auto& [model, units] : models_) model->publish(units);
}

void ShardedOptimizer::combine_overflow(at::Tensor& found_inf) {
  models_.front().first->group().all_reduce_(
      found_inf, Reduction::kMax, "comparing which gradients are finite");
}

void ShardedOptimizer::clear_gradients() {
  for (const std::vector<at::Tensor>& group : whole_groups_) {
    for (const at::Tensor& parameter : group) {
      if (model_of(parameter) != nullptr) parameter.mutable_grad().reset();
    }
  }
}

}  // namespace accel::sharding
