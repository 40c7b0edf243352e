// Which parameters have a state, which fields are defined and what `step` is, is agreed on first, unit by unit, since a rank
// without a piece of a parameter does not know. A field then is a placeholder without data, and this rank's part of it.
//
// A piece is a range of a parameter's memory. Where memory is not in row-major order (channels_last), it is no range of the
// file; such fields are gathered: each rank lays the field's pieces out as its shard of the unit, one all-gather makes the
// unit, and each parameter's slot of it is the field's whole tensor.

#include "libaccel/engine/sharding/whole_optimizer.h"

#include <type_traits>
#include <utility>
#include <vector>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_strided.h>
#include <ATen/ops/zeros.h>

#include <accel/types.h>

#include "libaccel/engine/checkpoint/files/mapped_tensors.h"
#include "libaccel/engine/checkpoint/states/archived_optimizer.h"
#include "libaccel/engine/optim/state_places.h"
#include "libaccel/engine/process/process_group.h"
#include "libaccel/engine/sharding/archived_states.h"
#include "libaccel/engine/sharding/sharded_model.h"
#include "libaccel/engine/sharding/sharded_optimizer.h"
#include "libaccel/tensors/divided_tensors.h"
#include "libaccel/tensors/optimizer_traits.h"

namespace accel::sharding {
namespace {

using torch::optim::Optimizer;
using torch::optim::OptimizerParamGroup;
using torch::optim::OptimizerParamState;

// Describes the states of one unit's parameters.
class UnitStates {
 public:
  UnitStates(const OptimizerTraits& kind,
             Optimizer& optimizer,
             const ShardedModel& model,
             std::size_t unit,
             checkpoint::DividedTensors& divided,
             GatheredStates gathered)
      : kind_(kind),
        optimizer_(optimizer),
        model_(model),
        unit_(model.units()[unit]),
        divided_(divided),
        gathered_(gathered) {
    const std::unique_ptr<OptimizerParamState> sample = kind_.make_state();
    const OptimizerStateView view(kind_, *sample);
    num_tensors_ = view.tensors.size();
    num_numbers_ = view.numbers.size();
  }

  void into(Optimizer& whole) {
    agree();
    std::vector<at::Tensor> fields(num_tensors_);
    for (std::size_t f = 0; f < num_tensors_; ++f) {
      if (!is_any_gathered(f)) continue;
      at::Tensor whole_field = gathered(f);
      if (gathered_ == GatheredStates::kKept) fields[f] = std::move(whole_field);
    }
    for (std::size_t s = 0; s < unit_.slots.size(); ++s) {
      if (flag(s, 0) == 0 || (gathered_ == GatheredStates::kDropped && !is_divided(s))) continue;
      whole.state()[parameter(s).unsafeGetTensorImpl()] = state_of(s, fields);
    }
  }

 private:
  [[nodiscard]] const at::Tensor& parameter(std::size_t slot) const {
    return model_.parameters()[unit_.slots[slot].parameter].tensor;
  }

  [[nodiscard]] at::TensorOptions memory() const {
    return at::TensorOptions(unit_.dtype).device(model_.device());
  }

  // The state of this rank's piece, or nullptr.
  [[nodiscard]] OptimizerParamState* own_state(std::size_t slot) const {
    const ShardPiece* piece = model_.piece_of(parameter(slot));
    if (piece == nullptr) return nullptr;
    const auto found = optimizer_.state().find(piece->tensor.unsafeGetTensorImpl());
    return found == optimizer_.state().end() ? nullptr : found->second.get();
  }

  // Row by parameter: has a state, which tensors are defined, the numbers.
  [[nodiscard]] std::int64_t& flag(std::size_t slot, std::size_t column) const {
    return flags_.data_ptr<std::int64_t>()[slot * width() + column];
  }
  [[nodiscard]] std::size_t width() const { return 1 + num_tensors_ + num_numbers_; }

  void agree() {
    flags_ = at::zeros({std::ssize(unit_.slots), static_cast<std::int64_t>(width())}, at::kLong);
    for (std::size_t s = 0; s < unit_.slots.size(); ++s) {
      OptimizerParamState* state = own_state(s);
      if (state == nullptr) continue;
      const OptimizerStateView view(kind_, *state);
      flag(s, 0) = 1;
      for (std::size_t f = 0; f < num_tensors_; ++f)
        flag(s, 1 + f) = view.tensors[f]->defined() ? 1 : 0;
      for (std::size_t n = 0; n < num_numbers_; ++n)
        flag(s, 1 + num_tensors_ + n) = *view.numbers[n];
    }
    model_.group().all_reduce_(flags_, Reduction::kMax, "comparing the optimizer's states");
  }

  // Whether a field of this slot goes into a file by parts.
  [[nodiscard]] bool is_divided(std::size_t slot) const {
    return divided_.find(parameter(slot)) != nullptr;
  }

  [[nodiscard]] bool is_any_gathered(std::size_t field) const {
    for (std::size_t s = 0; s < unit_.slots.size(); ++s) {
      if (flag(s, 1 + field) != 0 && !is_divided(s)) return true;
    }
    return false;
  }

  // Stands for a field; its part of this rank is noted. A piece that has no state yet, other than those of other ranks,
  // counts as zeros.
  [[nodiscard]] at::Tensor placeholder(std::size_t slot, std::size_t field) {
    at::Tensor whole =
        at::empty(parameter(slot).sizes(), at::TensorOptions(unit_.dtype).device(at::kMeta));
    std::vector<checkpoint::TensorPart> parts;
    if (const ShardPiece* piece = model_.piece_of(parameter(slot))) {
      OptimizerParamState* state = own_state(slot);
      at::Tensor values;
      if (state != nullptr) values = *OptimizerStateView(kind_, *state).tensors[field];
      if (!values.defined()) values = at::zeros({piece->place.numel}, memory());
      parts.push_back({piece->place.parameter_offset, in_memory_order(values)});
    }
    divided_.add(whole, std::move(parts));
    return whole;
  }

  // [world_size * shard_numel] of the field.
  [[nodiscard]] at::Tensor gathered(std::size_t field) {
    ProcessGroup& group = model_.group();
    const at::Tensor shard = at::zeros({unit_.shard_numel}, memory());
    for (std::size_t s = 0; s < unit_.slots.size(); ++s) {
      OptimizerParamState* state = own_state(s);
      if (state == nullptr || flag(s, 1 + field) == 0 || is_divided(s)) continue;
      const Piece& place = model_.piece_of(parameter(s))->place;
      shard.narrow(0, place.unit_offset - group.rank() * unit_.shard_numel, place.numel)
          .copy_(in_memory_order(*OptimizerStateView(kind_, *state).tensors[field]));
    }
    at::Tensor whole = at::empty({unit_.numel()}, memory());
    group.all_gather_into(whole, shard, "gathering the optimizer's states");
    return whole;
  }

  [[nodiscard]] std::unique_ptr<OptimizerParamState> state_of(
      std::size_t s, const std::vector<at::Tensor>& fields) {
    std::unique_ptr<OptimizerParamState> state = kind_.make_state();
    const OptimizerStateView view(kind_, *state);
    const at::Tensor& shape = parameter(s);
    for (std::size_t f = 0; f < num_tensors_; ++f) {
      if (flag(s, 1 + f) == 0) continue;
      *view.tensors[f] =
          is_divided(s)
              ? placeholder(s, f)
              : fields[f].as_strided(shape.sizes(), shape.strides(), unit_.slots[s].offset).clone();
    }
    for (std::size_t n = 0; n < num_numbers_; ++n) *view.numbers[n] = flag(s, 1 + num_tensors_ + n);
    return state;
  }

  const OptimizerTraits& kind_;
  Optimizer& optimizer_;
  const ShardedModel& model_;
  const Unit& unit_;
  checkpoint::DividedTensors& divided_;
  GatheredStates gathered_;
  std::size_t num_tensors_ = 0;
  std::size_t num_numbers_ = 0;
  at::Tensor flags_;
};

// A range of a parameter's memory in the shape of its piece.
at::Tensor shaped_as(const at::Tensor& piece, const at::Tensor& range) {
  return range.as_strided(piece.sizes(), piece.strides(), range.storage_offset());
}

}  // namespace

at::Tensor in_memory_order(const at::Tensor& tensor) {
  return tensor.detach().as_strided({tensor.numel()}, {1}, tensor.storage_offset());
}

std::unique_ptr<Optimizer> ShardedOptimizer::whole_optimizer() const {
  std::vector<OptimizerParamGroup> groups;
  for (std::size_t g = 0; g < optimizer_.param_groups().size(); ++g) {
    groups.emplace_back(whole_groups_[g], optimizer_.param_groups()[g].options().clone());
  }
  if (!has_state_by_parameter(optimizer_))
    return std::make_unique<checkpoint::ArchivedOptimizer>(optimizer_, whole_groups_);
  std::unique_ptr<Optimizer> whole = traits_of(optimizer_)->make(std::move(groups));
  whole->state().clear();
  return whole;
}

void ShardedOptimizer::describe_states(Optimizer& whole,
                                       checkpoint::DividedTensors& divided,
                                       GatheredStates gathered) const {
  const at::NoGradGuard no_grad;
  if (auto* archived = dynamic_cast<checkpoint::ArchivedOptimizer*>(&whole))
    return describe_archived_states(optimizer_, *this, *archived, divided, gathered);
  const OptimizerTraits& kind = *traits_of(optimizer_);
  for (const auto& [model, units] : models_) {
    for (const std::size_t unit : units) {
      UnitStates(kind, optimizer_, *model, unit, divided, gathered).into(whole);
    }
  }
  for (const auto& group : whole_groups_) {
    for (const at::Tensor& parameter : group) {
      if (model_of(parameter) != nullptr) continue;
      const auto state = optimizer_.state().find(parameter.unsafeGetTensorImpl());
      if (state != optimizer_.state().end()) whole.state()[state->first] = state->second->clone();
    }
  }
}

at::Tensor part_of(const at::Tensor& whole, const at::Tensor& parameter, const Piece& place) {
  const at::Tensor laid_out =
      at::empty_strided(parameter.sizes(), parameter.strides(), whole.options()).copy_(whole);
  return laid_out.as_strided({place.numel}, {1}, place.parameter_offset).clone();
}

// Of the states that this rank will take.
void ShardedOptimizer::make_places(StatePlaces& places, Optimizer& whole) const {
  const OptimizerTraits& kind = *traits_of(optimizer_);
  std::vector<StateField> wanted;
  for (const auto& group : whole.param_groups()) {
    for (const at::Tensor& parameter : group.params()) {
      const auto found = whole.state().find(parameter.unsafeGetTensorImpl());
      const ShardedModel* const model = model_of(parameter);
      const ShardPiece* const piece = model == nullptr ? nullptr : model->piece_of(parameter);
      if (found == whole.state().end() || (model != nullptr && piece == nullptr)) continue;
      const OptimizerStateView view(kind, *found->second);
      for (std::size_t f = 0; f < view.tensors.size(); ++f) {
        const at::Tensor& own = piece == nullptr ? parameter : piece->tensor;
        if (view.tensors[f]->defined() && view.tensors[f]->scalar_type() == own.scalar_type())
          wanted.push_back({own, f});
      }
    }
  }
  places.make(wanted);
}

void ShardedOptimizer::take_states(Optimizer& whole,
                                   const checkpoint::DividedTensors& divided,
                                   StatePlaces* places) {
  const at::NoGradGuard no_grad;
  if (auto* archived = dynamic_cast<checkpoint::ArchivedOptimizer*>(&whole)) {
    take_archived_states(*archived, *this, divided, optimizer_);
    return note_states();
  }
  const OptimizerTraits& kind = *traits_of(optimizer_);
  if (places != nullptr) make_places(*places, whole);
  const auto& before = optimizer_.state();
  std::remove_cvref_t<decltype(optimizer_.state())> after;  // what is mapped may fail to be copied
  for (std::size_t g = 0; g < whole.param_groups().size(); ++g) {
    kind.copy_options(whole.param_groups()[g].options(), optimizer_.param_groups()[g].options());
    for (const at::Tensor& parameter : whole.param_groups()[g].params()) {
      const auto found = whole.state().find(parameter.unsafeGetTensorImpl());
      if (found == whole.state().end()) continue;
      const ShardedModel* model = model_of(parameter);
      if (model == nullptr) {
        auto& own = after[found->first] = found->second->clone();
        std::size_t f = 0;
        for (at::Tensor* field : OptimizerStateView(kind, *own).tensors) {
          if (field->defined())
            *field = checkpoint::placed_state(places, {parameter, f}, at::Tensor(), *field);
          ++f;
        }
        continue;
      }
      const ShardPiece* piece = model->piece_of(parameter);
      if (piece == nullptr) continue;
      std::unique_ptr<OptimizerParamState> state = found->second->clone();
      const auto present = before.find(piece->tensor.unsafeGetTensorImpl());
      c10::SmallVector<at::Tensor*, 4> present_fields;
      if (present != before.end() && kind.has_state(*present->second))
        present_fields = OptimizerStateView(kind, *present->second).tensors;
      std::size_t i = 0;
      for (at::Tensor* field : OptimizerStateView(kind, *state).tensors) {
        const std::size_t f = i++;
        if (!field->defined()) continue;
        const auto* parts = divided.find(*field);
        const at::Tensor part =
            parts == nullptr ? part_of(*field, parameter, piece->place) : parts->at(0).values;
        const at::Tensor loaded =
            shaped_as(piece->tensor, checkpoint::loaded_on(piece->tensor.device(), part));
        *field =
            checkpoint::placed_state(places,
                                     {piece->tensor, f},
                                     f < present_fields.size() ? *present_fields[f] : at::Tensor(),
                                     loaded);
      }
      after[piece->tensor.unsafeGetTensorImpl()] = std::move(state);
    }
  }
  optimizer_.state() = std::move(after);
  note_states();
}

}  // namespace accel::sharding
