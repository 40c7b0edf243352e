// What a divided model and its optimizer show: this rank's parts by name, the same laid out by units, or whole tensors; and
// what of a model goes into files by parts.

#include <string>
#include <utility>

#include <ATen/ops/zeros.h>
#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>

#include <accel/state_view.h>

#include "libaccel/engine/checkpoint/states/module_state.h"
#include "libaccel/engine/checkpoint/states/optimizer_state.h"
#include "libaccel/engine/process/process_group.h"
#include "libaccel/engine/sharding/sharded_model.h"
#include "libaccel/engine/sharding/sharded_optimizer.h"
#include "libaccel/engine/sharding/whole_optimizer.h"
#include "libaccel/tensors/divided_tensors.h"

namespace accel::sharding {
namespace {

using checkpoint::NamedTensor;
using checkpoint::whole_tensor;

StateTensor part_tensor(const at::Tensor& parameter, std::int64_t begin, at::Tensor values) {
  return {.values = std::move(values),
          .shape = parameter.sizes().vec(),
          .strides = parameter.strides().vec(),
          .begin = begin,
          .is_whole = false};
}

// This rank's shard of a unit, of the length that all have.
StateTensor shard_of(const ShardedModel& model, at::Tensor values, std::int64_t shard_numel) {
  const std::int64_t all = model.group().size() * shard_numel;
  return {.values = std::move(values),
          .shape = {all},
          .strides = {1},
          .begin = model.group().rank() * shard_numel,
          .is_whole = false};
}

bool divides(const ShardedModel& model, const at::Tensor& tensor) {
  return tensor.numel() > 0 && model.owns(tensor);
}

// The views of an optimizer.
class OptimizerView {
 public:
  OptimizerView(const ShardedOptimizer& sharded, const std::vector<torch::nn::Module*>& modules)
      : sharded_(sharded), modules_(modules), names_(modules) {}

  accel::StateView whole(GatheredStates gathered, const StateDictConfig& config) {
    checkpoint::SavedOptimizer saved = describe(gathered);
    accel::StateView view{.type = StateDictType::kFull};
    if (gathered == GatheredStates::kDropped) return view;
    for (auto& [name, tensor] : saved.tensors)
      view.tensors.emplace(name, whole_tensor(checkpoint::placed(tensor, config)));
    view.json = std::move(saved.json);
    return view;
  }

  accel::StateView parts() {
    for (const auto& [model, units] : sharded_.models()) model->add_parts(divided_);
    checkpoint::SavedOptimizer saved = describe(GatheredStates::kKept);
    accel::StateView view{.type = StateDictType::kSharded, .json = std::move(saved.json)};
    for (auto& [name, tensor] : saved.tensors) {
      const at::Tensor* parameter = names_.parameter_of(name);
      const ShardedModel* model = parameter == nullptr ? nullptr : sharded_.model_of(*parameter);
      if (model == nullptr || !divides(*model, *parameter)) {
        view.tensors.emplace(name, whole_tensor(tensor));
      } else if (const ShardPiece* piece = model->piece_of(*parameter)) {
        const auto* parts = divided_.find(tensor);
        if (tensor.sizes() != parameter->sizes()) {
          // Of an optimizer of the user's own: its owner has the whole of it.
          view.tensors.emplace(
              name,
              whole_tensor(parts == nullptr ? tensor : parts->at(0).values.view(tensor.sizes())));
          continue;
        }
        // What is no range of a file was gathered.
        at::Tensor values =
            parts == nullptr ? part_of(tensor, *parameter, piece->place) : parts->at(0).values;
        view.tensors.emplace(
            name, part_tensor(*parameter, piece->place.parameter_offset, std::move(values)));
      }
    }
    return view;
  }

  // The parts, at their places in the shards.
  accel::StateView shards() {
    StateView parts_of_tensors = parts();
    accel::StateView view{.type = StateDictType::kLocal, .json = std::move(parts_of_tensors.json)};
    for (auto& [name, part] : parts_of_tensors.tensors) {
      if (part.is_whole) {
        view.tensors.emplace(name, std::move(part));
        continue;
      }
      const at::Tensor& parameter = *names_.parameter_of(name);
      const ShardedModel& model = *sharded_.model_of(parameter);
      const std::size_t unit = model.unit_of(parameter);
      const std::int64_t numel = model.units()[unit].shard_numel;
      const std::string field = name.substr(name.rfind('.'));
      StateTensor& shard = view.tensors[prefix_of(model) + "unit_" + std::to_string(unit) + field];
      if (!shard.values.defined())
        shard = shard_of(model, at::zeros({numel}, part.values.options()), numel);
      const Piece& place = model.piece_of(parameter)->place;
      shard.values.narrow(0, place.unit_offset - shard.begin, place.numel).copy_(part.values);
    }
    return view;
  }

 private:
  checkpoint::SavedOptimizer describe(GatheredStates gathered) {
    whole_ = sharded_.whole_optimizer();
    sharded_.describe_states(*whole_, divided_, gathered);
    return checkpoint::save_optimizer(*whole_, names_);
  }

  // As names of parameters have it: none for the first model.
  [[nodiscard]] std::string prefix_of(const ShardedModel& model) const {
    for (std::size_t m = 1; m < modules_.size(); ++m) {
      for (const at::Tensor& parameter : modules_[m]->parameters())
        if (model.owns(parameter)) return "model_" + std::to_string(m) + ":";
    }
    return "";
  }

  const ShardedOptimizer& sharded_;
  const std::vector<torch::nn::Module*>& modules_;
  checkpoint::ParameterNames names_;
  checkpoint::DividedTensors divided_;
  std::unique_ptr<torch::optim::Optimizer> whole_;  // whose states the views refer to
};

}  // namespace

void ShardedModel::add_parts(checkpoint::DividedTensors& divided) const {
  for (const NamedParameter& parameter : parameters_) {
    const at::Tensor& tensor = parameter.tensor;
    if (tensor.numel() == 0 || !tensor.is_contiguous()) continue;
    std::vector<checkpoint::TensorPart> parts;
    if (const ShardPiece* piece = piece_of(tensor))
      parts.push_back({piece->place.parameter_offset, in_memory_order(piece->tensor)});
    divided.add(tensor, std::move(parts), units_[unit_of(tensor)].dtype);
  }
}

void ShardedModel::add_to_view(const torch::nn::Module& module, accel::StateView& view) {
  take_written();
  const bool is_by_unit = view.type == StateDictType::kLocal;
  for (std::size_t unit = 0; is_by_unit && unit < units_.size(); ++unit) {
    view.tensors.emplace("unit_" + std::to_string(unit),
                         shard_of(*this, shard(unit), units_[unit].shard_numel));
  }
  for (const NamedTensor& item : checkpoint::state_of(module)) {
    if (!divides(*this, item.tensor)) {
      view.tensors.emplace(item.name, whole_tensor(full_values_of(item.tensor)));
      continue;
    }
    const ShardPiece* const piece = is_by_unit ? nullptr : piece_of(item.tensor);
    if (piece == nullptr) continue;
    view.tensors.emplace(
        item.name,
        part_tensor(item.tensor, piece->place.parameter_offset, in_memory_order(piece->tensor)));
  }
}

accel::StateView ShardedOptimizer::view(StateDictType type,
                                        GatheredStates gathered,
                                        const StateDictConfig& config,
                                        const std::vector<torch::nn::Module*>& modules) const {
  OptimizerView view(*this, modules);
  if (type == StateDictType::kFull) return view.whole(gathered, config);
  return type == StateDictType::kSharded ? view.parts() : view.shards();
}

}  // namespace accel::sharding
