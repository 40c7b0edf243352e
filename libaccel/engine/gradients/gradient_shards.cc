#include "libaccel/engine/gradients/gradient_shards.h"

#include <algorithm>
#include <map>
#include <utility>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/full.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/tensor.h>

#include <accel/error.h>
#include <accel/types.h>

#include "libaccel/engine/process/process_group.h"
#include "libaccel/engine/shm/group/byte_group.h"

namespace accel::sharding {
namespace {

constexpr std::size_t kMostBegun = 2;  // sums on a device, beside the backward

c10::Device device_of_all(const std::vector<NamedParameter>& parameters) {
  return parameters.empty() ? c10::Device(c10::kCPU) : parameters.front().tensor.device();
}

}  // namespace

GradientShards::GradientShards(std::vector<NamedParameter> parameters,
                               std::vector<Unit> units,
                               Mesh& mesh,
                               int model)
    : parameters_(std::move(parameters)),
      units_(std::move(units)),
      unit_of_(parameters_.size()),
      slot_of_(parameters_.size(), nullptr),
      is_plain_(units_.size(), true),
      all_(mesh.group(MeshAxis::kData)),
      shards_(mesh.group(MeshAxis::kShard)),
      replicas_(mesh.size(MeshAxis::kReplicate) > 1 ? mesh.group(MeshAxis::kReplicate) : nullptr),
      device_(device_of_all(parameters_)),
      model_(model),
      scale_(at::scalar_tensor(1.0 / all_->size(), at::TensorOptions(at::kDouble))),
      unit_states_(units_.size()),
      was_used_(parameters_.size()) {
  scale_.unsafeGetTensorImpl()->set_wrapped_number(true);
  for (std::size_t unit = 0; unit < units_.size(); ++unit) {
    for (const Slot& slot : units_[unit].slots) {
      unit_of_[slot.parameter] = unit;
      slot_of_[slot.parameter] = &slot;
      if (parameters_[slot.parameter].tensor.scalar_type() != units_[unit].dtype)
        is_plain_[unit] = false;
    }
  }
  find_room();
}

ExchangeState::Rules GradientShards::rules() const {
  ExchangeState::Rules rules{.missing = ExchangeState::Missing::kIsZero};
  for (std::size_t i = 0; i < parameters_.size(); ++i)
    rules.group_of.push_back(slot_of_[i] == nullptr ? ExchangeState::kNoGroup
                                                    : unit_of_group(unit_of_[i]));
  return rules;
}

void GradientShards::before_backward(bool /*exchanges*/, const std::vector<at::Tensor>&) {
  const at::NoGradGuard no_grad;
  separate_gradients(parameters_);
}

void GradientShards::drop() noexcept {
  try {
    settle_reductions(0);
  } catch (const std::exception&) {
    begun_.clear();  // the group is over, and says so to whoever calls it next
  }
  for (UnitState& unit : unit_states_) unit = {};
  live_bytes_ = 0;
}

Error GradientShards::second_gradient(const NamedParameter& parameter) const {
  return Error(
      ErrorCode::kInvalidArgument,
      "the parameter " + parameter.name + " gets a second gradient before the first was handed out",
      "call accelerator.backward() for each loss, or hold no_sync() around all batches "
      "but the last");
}

bool GradientShards::begin(bool has_gradients) {
  at::Tensor said = at::empty({3}, at::kInt);
  int* values = said.data_ptr<int>();
  values[0] = has_gradients ? 1 : 0;
  values[1] = model_;
  values[2] = -model_;
  all_->all_reduce_(said, Reduction::kMax, "beginning to reduce gradients");
  if (values[1] != -values[2]) {
    throw Error(ErrorCode::kShapeMismatch,
                "rank " + std::to_string(all_->rank()) + " reduces the gradients of model " +
                    std::to_string(model_) +
                    " (by the order of prepare()), another rank those of model " +
                    std::to_string(values[1] == model_ ? -values[2] : values[1]),
                "let every rank run backward through the same models in the same order");
  }
  if (values[0] == 0) return false;
  for (UnitState& unit : unit_states_) unit = {};
  return true;
}

void GradientShards::find_room() {
  std::map<std::size_t, std::size_t> most;  // gradients of so many bytes in a unit
  for (std::size_t unit = 0; unit < units_.size(); ++unit) {
    if (!stays_apart(unit)) continue;
    std::map<std::size_t, std::size_t> own;
    for (const Slot& slot : units_[unit].slots) ++own[parameters_[slot.parameter].tensor.nbytes()];
    for (const auto& [bytes, count] : own) most[bytes] = std::max(most[bytes], count);
  }
  std::vector<std::size_t> sizes;
  for (const auto& [bytes, count] : most) sizes.insert(sizes.end(), count, bytes);
  room_ = GradientRoom::create(shards_, sizes);
}

bool GradientShards::sums_wide(std::size_t unit) const {
  return replicas_ && at::isReducedFloatingType(units_[unit].dtype);
}

bool GradientShards::stays_apart(std::size_t unit) const {
  return device_.is_cpu() && is_plain_[unit] && !sums_wide(unit) &&
         at::isFloatingType(units_[unit].dtype);
}

// Moves the parameter's gradient into its unit.
void GradientShards::take(std::size_t parameter, const at::Tensor& /*arrived*/) {
  const at::Tensor gradient =
      std::exchange(parameters_[parameter].tensor.mutable_grad(), at::Tensor());
  if (slot_of_[parameter] == nullptr) return;
  if (room_ != nullptr && stays_apart(unit_of_[parameter])) {
    take_apart(parameter, gradient);
  } else {
    take_flat(parameter, gradient);
  }
}

// In the order of the parameter's memory, which is that of its shard.
void GradientShards::take_apart(std::size_t parameter, const at::Tensor& gradient) {
  const at::Tensor& values = parameters_[parameter].tensor;
  const std::size_t unit = unit_of_[parameter];
  at::Tensor own = room_->taken(gradient, values);
  std::vector<at::Tensor>& apart = unit_states_[unit].apart;
  apart.resize(units_[unit].slots.size());
  hold(static_cast<std::int64_t>(own.nbytes()));
  apart[static_cast<std::size_t>(slot_of_[parameter] - units_[unit].slots.data())] = std::move(own);
}

void GradientShards::take_flat(std::size_t parameter, const at::Tensor& gradient) {
  const at::Tensor& values = parameters_[parameter].tensor;
  const std::size_t unit = unit_of_[parameter];
  UnitState& state = unit_states_[unit];
  if (!state.flat.defined()) state.flat = borrow_flat(units_[unit]);
  at::Tensor place = state.flat.as_strided(
      values.sizes(), values.strides(), state.flat.storage_offset() + slot_of_[parameter]->offset);
  if (place.scalar_type() == gradient.scalar_type()) {
    at::mul_out(place, gradient, scale_);
  } else {  // mul_out() would round to the gradient's dtype first
    place.copy_(gradient).mul_(scale_);
  }
}

void GradientShards::reduce(std::size_t group, std::span<const std::uint8_t> arrived) {
  const std::size_t unit = unit_of_group(group);
  if (reduce_apart(unit)) return complete(unit);
  flatten(unit, arrived);
  begin_flat(unit);
  settle_reductions(device_.is_cpu() ? 0 : kMostBegun);
}

void GradientShards::settle_reductions(std::size_t most_left) {
  while (begun_.size() > most_left) {
    BegunSum oldest = std::move(begun_.front());
    begun_.pop_front();
    oldest.work.wait();
    live_bytes_ -= static_cast<std::int64_t>(oldest.flat.nbytes());
    spare_.push_back(std::move(oldest.flat));
    complete(oldest.unit);
  }
}

// The shard of this rank is summed.
void GradientShards::complete(std::size_t unit) {
  UnitState& state = unit_states_[unit];
  if (replicas_)
    replicas_->all_reduce_(state.shard, Reduction::kSum, "reducing gradients over nodes");
  if (state.shard.scalar_type() != units_[unit].dtype)
    state.shard = state.shard.to(units_[unit].dtype);
  if (keep_) state.shard = keep_(unit, state.shard);
  if (when_reduced_) when_reduced_(unit, state.shard);
}

// Out of where the gradients lie. False, on all ranks alike, where some cannot be seen by all.
bool GradientShards::reduce_apart(std::size_t unit) {
  if (room_ == nullptr || !stays_apart(unit)) return false;
  UnitState& state = unit_states_[unit];
  state.apart.resize(units_[unit].slots.size());
  std::vector<shm::Piece> pieces;
  std::int64_t end = 0;
  const auto fill_to = [&](std::int64_t offset) {
    if (offset > end) pieces.push_back({nullptr, static_cast<std::size_t>(offset - end)});
  };
  for (std::size_t i = 0; i < state.apart.size(); ++i) {
    const Slot& slot = units_[unit].slots[i];
    fill_to(slot.offset);
    auto* const data =
        state.apart[i].defined() ? static_cast<std::byte*>(state.apart[i].data_ptr()) : nullptr;
    pieces.push_back({data, static_cast<std::size_t>(slot.numel)});
    end = slot.offset + slot.numel;
  }
  fill_to(units_[unit].numel());
  at::Tensor shard = empty_shard(unit, units_[unit].dtype);
  bool is_done = false;
  try {
    is_done =
        shards_->reduce_scatter_pieces(shard, pieces, 1.0 / all_->size(), "reducing gradients");
  } catch (...) {
    room_->close();
    throw;
  }
  if (!is_done) return false;
  state.shard = std::move(shard);
  for (const at::Tensor& gradient : std::exchange(state.apart, {})) {
    if (gradient.defined()) live_bytes_ -= static_cast<std::int64_t>(gradient.nbytes());
  }
  return true;
}

// What has stayed apart goes into the flat gradient after all.
void GradientShards::flatten(std::size_t unit, std::span<const std::uint8_t> arrived) {
  UnitState& state = unit_states_[unit];
  for (std::size_t i = 0; i < state.apart.size(); ++i) {
    const at::Tensor gradient = std::exchange(state.apart[i], at::Tensor());
    if (!gradient.defined()) continue;
    take_flat(units_[unit].slots[i].parameter, gradient);
    live_bytes_ -= static_cast<std::int64_t>(gradient.nbytes());
  }
  if (!state.flat.defined()) state.flat = borrow_flat(units_[unit]);
  clear_gaps(unit, arrived);
}

void GradientShards::begin_flat(std::size_t unit) {
  UnitState& state = unit_states_[unit];
  // Sums of 16 bits are made in fp32; with a second sum to come the first one is not rounded either.
  at::Tensor flat = sums_wide(unit) ? state.flat.to(at::kFloat) : state.flat;
  state.shard = empty_shard(unit, flat.scalar_type());
  Work work = shards_->begin_reduce_scatter(state.shard, flat, "reducing gradients");
  begun_.push_back(
      {unit, std::exchange(state.flat, at::Tensor()), std::move(flat), std::move(work)});
}

// Zero where no gradient was written: between slots, behind the last one, and in slots without a gradient.
void GradientShards::clear_gaps(std::size_t unit, std::span<const std::uint8_t> arrived) {
  const at::Tensor& flat = unit_states_[unit].flat;
  std::int64_t written = 0;
  for (const Slot& slot : units_[unit].slots) {
    if (arrived[slot.parameter] == 0) continue;
    if (slot.offset > written) flat.narrow(0, written, slot.offset - written).zero_();
    written = slot.offset + slot.numel;
  }
  if (flat.numel() > written) flat.narrow(0, written, flat.numel() - written).zero_();
}

at::Tensor GradientShards::empty_shard(std::size_t unit, at::ScalarType dtype) const {
  const OrdinaryMemory stays;
  return at::empty({units_[unit].shard_numel}, at::TensorOptions(dtype).device(device_));
}

at::Tensor GradientShards::borrow_flat(const Unit& unit) {
  const auto fits = [&](const at::Tensor& flat) {
    return flat.numel() == unit.numel() && flat.scalar_type() == unit.dtype;
  };
  at::Tensor flat;
  if (const auto found = std::find_if(spare_.begin(), spare_.end(), fits); found != spare_.end()) {
    flat = std::move(*found);
    spare_.erase(found);
  } else {
    spare_.clear();
    const OrdinaryMemory stays;
    flat = at::empty({unit.numel()}, at::TensorOptions(unit.dtype).device(device_));
  }
  hold(static_cast<std::int64_t>(flat.nbytes()));
  return flat;
}

void GradientShards::hold(std::int64_t bytes) noexcept {
  live_bytes_ += bytes;
  peak_bytes_ = std::max(peak_bytes_, live_bytes_);
}

// Agrees on which parameters were used.
void GradientShards::finish(std::span<const std::uint8_t> arrived) {
  settle_reductions(0);
  at::Tensor used = at::empty({std::ssize(arrived)}, at::kInt);
  std::copy(arrived.begin(), arrived.end(), used.data_ptr<int>());
  all_->all_reduce_(used, Reduction::kMax, "comparing which parameters have gradients");
  std::copy_n(used.const_data_ptr<int>(), was_used_.size(), was_used_.begin());
}

at::Tensor GradientShards::take_gradient(std::size_t unit) {
  return std::exchange(unit_states_.at(unit).shard, at::Tensor());
}

}  // namespace accel::sharding
