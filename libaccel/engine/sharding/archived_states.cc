#include "libaccel/engine/sharding/archived_states.h"

#include <exception>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <nlohmann/json.hpp>

#include <accel/error.h>

#include "libaccel/engine/checkpoint/states/archived_optimizer.h"
#include "libaccel/engine/process/agreement.h"
#include "libaccel/engine/process/process_group.h"
#include "libaccel/engine/sharding/sharded_model.h"
#include "libaccel/engine/sharding/sharded_optimizer.h"
#include "libaccel/tensors/divided_tensors.h"

namespace accel::sharding {
namespace {

using checkpoint::ArchivedFields;
using checkpoint::ArchivedOptimizer;
using checkpoint::ArchivedState;
using nlohmann::json;
using torch::optim::Optimizer;

// Describes the states of one model's parameters.
class ModelStates {
 public:
  ModelStates(Optimizer& optimizer,
              const ShardedModel& model,
              checkpoint::DividedTensors& divided,
              GatheredStates gathered)
      : optimizer_(optimizer), model_(model), divided_(divided), gathered_(gathered) {}

  void into(ArchivedOptimizer& whole) {
    const auto texts = or_throw(gather_results(own_or_error(whole.type()),
                                               kAnyLength,
                                               model_.group(),
                                               "comparing the optimizer's states"));
    for (int owner = 0; owner < model_.group().size(); ++owner) {
      for (const json& described : json::parse(texts[static_cast<std::size_t>(owner)])) {
        const NamedParameter& parameter = model_.parameters()[described.at(0).get<std::size_t>()];
        const bool is_divided = divided_.find(parameter.tensor) != nullptr;
        auto state = std::make_unique<ArchivedState>();
        state->fields.values = described.at(1).get<std::string>();
        for (const auto& [key, form] : described.at(2).items()) {
          state->fields.tensors.emplace(key,
                                        tensor(form, own_field(parameter, key), owner, is_divided));
        }
        if (!is_divided && gathered_ == GatheredStates::kDropped) continue;
        whole.state()[parameter.tensor.unsafeGetTensorImpl()] = std::move(state);
      }
    }
  }

 private:
  Result<std::string> own_or_error(const std::string& type) {
    try {
      return own_states(type);
    } catch (const Error& error) {
      return error;
    } catch (const std::exception& error) {  // of the user's own code
      return Error(ErrorCode::kUnsupported, type + " failed to write its states: " + error.what());
    }
  }

  // [[parameter, values, {field: [type, shape]}], ...], and keeps the tensors.
  std::string own_states(const std::string& type) {
    json states = json::array();
    for (std::size_t p = 0; p < model_.parameters().size(); ++p) {
      const NamedParameter& parameter = model_.parameters()[p];
      const ShardPiece* const piece = model_.piece_of(parameter.tensor);
      if (piece == nullptr) continue;
      const auto found = optimizer_.state().find(piece->tensor.unsafeGetTensorImpl());
      if (found == optimizer_.state().end()) continue;
      ArchivedFields fields =
          checkpoint::fields_of(*found->second, type + "'s state of " + parameter.name);
      json forms = json::object();
      for (const auto& [key, values] : fields.tensors)
        forms[key] = {static_cast<int>(values.scalar_type()), values.sizes().vec()};
      states.push_back({p, fields.values, std::move(forms)});
      own_.emplace(parameter.name, std::move(fields));
    }
    return states.dump();
  }

  // Undefined on ranks that do not own it.
  [[nodiscard]] at::Tensor own_field(const NamedParameter& parameter,
                                     const std::string& key) const {
    const auto found = own_.find(parameter.name);
    return found == own_.end() ? at::Tensor() : found->second.tensors.at(key);
  }

  // A placeholder, or values on every rank.
  [[nodiscard]] at::Tensor tensor(const json& form,
                                  const at::Tensor& own,
                                  int owner,
                                  bool is_divided) {
    const auto dtype = static_cast<at::ScalarType>(form.at(0).get<int>());
    const auto shape = form.at(1).get<std::vector<std::int64_t>>();
    if (!is_divided) {
      // By way of the host: others do not know where the owner has it.
      at::Tensor values = own.defined() ? own.cpu().contiguous() : at::empty(shape, dtype);
      model_.group().broadcast_(values, owner, "gathering the optimizer's states");
      return values;
    }
    at::Tensor whole = at::empty(shape, at::TensorOptions(dtype).device(at::kMeta));
    std::vector<checkpoint::TensorPart> parts;
    if (own.defined()) parts.push_back({0, own.contiguous().flatten()});
    divided_.add(whole, std::move(parts));
    return whole;
  }

  Optimizer& optimizer_;
  const ShardedModel& model_;
  checkpoint::DividedTensors& divided_;
  GatheredStates gathered_;
  std::map<std::string, ArchivedFields> own_;  // by name of the parameter
};

// What a placeholder stands for, on the rank that owns it; on the device of the parameter where it has its shape.
at::Tensor loaded(const at::Tensor& tensor,
                  const checkpoint::DividedTensors& divided,
                  const at::Tensor& parameter) {
  const auto* parts = divided.find(tensor);
  if (parts == nullptr) return tensor;
  at::Tensor values = parts->empty() ? at::empty(tensor.sizes(), tensor.scalar_type())
                                     : parts->at(0).values.view(tensor.sizes());
  return values.sizes() == parameter.sizes() ? values.to(parameter.device()) : values;
}

}  // namespace

void describe_archived_states(Optimizer& optimizer,
                              const ShardedOptimizer& sharded,
                              ArchivedOptimizer& whole,
                              checkpoint::DividedTensors& divided,
                              GatheredStates gathered) {
  const at::NoGradGuard no_grad;
  for (const auto& [model, units] : sharded.models())
    ModelStates(optimizer, *model, divided, gathered).into(whole);
  for (const auto& group : sharded.whole_groups()) {
    for (const at::Tensor& parameter : group) {
      if (sharded.model_of(parameter) != nullptr) continue;
      const auto found = optimizer.state().find(parameter.unsafeGetTensorImpl());
      if (found == optimizer.state().end()) continue;
      auto state = std::make_unique<ArchivedState>();
      state->fields = checkpoint::fields_of(*found->second, "a state of " + whole.type());
      whole.state()[found->first] = std::move(state);
    }
  }
}

void take_archived_states(ArchivedOptimizer& whole,
                          const ShardedOptimizer& sharded,
                          const checkpoint::DividedTensors& divided,
                          Optimizer& optimizer) {
  const at::NoGradGuard no_grad;
  std::vector<std::vector<at::Tensor>> groups;
  for (const auto& group : optimizer.param_groups()) groups.push_back(group.params());
  ArchivedOptimizer own(optimizer, std::move(groups));
  for (std::size_t g = 0; g < whole.param_groups().size(); ++g) {
    own.options_of(g) = whole.options_of(g);
    for (const at::Tensor& parameter : whole.param_groups()[g].params()) {
      const auto found = whole.state().find(parameter.unsafeGetTensorImpl());
      if (found == whole.state().end()) continue;
      const ShardedModel* const model = sharded.model_of(parameter);
      const ShardPiece* const piece = model == nullptr ? nullptr : model->piece_of(parameter);
      if (model != nullptr && piece == nullptr) continue;
      auto state =
          std::make_unique<ArchivedState>(static_cast<const ArchivedState&>(*found->second));
      for (auto& [key, tensor] : state->fields.tensors) tensor = loaded(tensor, divided, parameter);
      const at::Tensor& key = piece == nullptr ? parameter : piece->tensor;
      own.state()[key.unsafeGetTensorImpl()] = std::move(state);
    }
  }
  checkpoint::load_archived(optimizer, own);
}

}  // namespace accel::sharding
