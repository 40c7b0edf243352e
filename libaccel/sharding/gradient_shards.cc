#include "libaccel/sharding/gradient_shards.h"

#include <algorithm>
#include <utility>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/full.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/tensor.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>

#include <accel/error.h>
#include <accel/types.h>

#include "libaccel/process/process_group.h"

namespace accel::sharding {

class GradientShards::Hook final : public torch::autograd::PostAccumulateGradHook {
 public:
  Hook(GradientShards& owner, std::size_t parameter) : owner_(owner), parameter_(parameter) {}
  void operator()(const at::Tensor&) override { owner_.on_gradient(parameter_); }

 private:
  GradientShards& owner_;
  std::size_t parameter_;
};

GradientShards::GradientShards(std::vector<at::Tensor> parameters,
                               std::vector<Unit> units,
                               std::shared_ptr<ProcessGroup> group)
    : parameters_(std::move(parameters)),
      units_(std::move(units)),
      unit_of_(parameters_.size()),
      slot_of_(parameters_.size(), nullptr),
      group_(std::move(group)),
      scale_(1.0 / group_->size()),
      unit_states_(units_.size()),
      arrived_(parameters_.size()),
      was_used_(parameters_.size()) {
  for (std::size_t unit = 0; unit < units_.size(); ++unit) {
    for (const Slot& slot : units_[unit].slots) {
      unit_of_[slot.parameter] = unit;
      slot_of_[slot.parameter] = &slot;
    }
  }
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    torch::autograd::impl::set_post_acc_grad_hooks(parameters_[i],
                                                   std::make_unique<Hook>(*this, i));
  }
}

GradientShards::~GradientShards() {
  for (const at::Tensor& parameter : parameters_) {
    torch::autograd::impl::set_post_acc_grad_hooks(parameter, nullptr);
  }
}

void GradientShards::arm() noexcept {
  if (state_ == State::kIdle) state_ = State::kArmed;
}

void GradientShards::disarm() noexcept {
  if (state_ == State::kArmed) state_ = State::kIdle;
}

void GradientShards::on_gradient(std::size_t parameter) {
  if (state_ == State::kIdle) return;
  const at::NoGradGuard no_grad;
  if (state_ == State::kArmed) call_roll(true);
  at::Tensor& gradient = parameters_[parameter].mutable_grad();
  if (!gradient.defined()) return;
  take(parameter, gradient);
  gradient.reset();
  reduce_ready_units(false);
}

// Whether any rank has a gradient.
bool GradientShards::call_roll(bool has_gradients) {
  at::Tensor anybody = at::full({1}, has_gradients ? 1 : 0, at::kInt);
  group_->all_reduce_(anybody, Reduction::kMax, "beginning to reduce gradients");
  if (anybody.item<int>() == 0) return false;
  state_ = State::kReducing;
  num_reduced_ = 0;
  std::fill(arrived_.begin(), arrived_.end(), std::uint8_t{0});
  for (UnitState& unit : unit_states_) unit = {};
  return true;
}

void GradientShards::take(std::size_t parameter, const at::Tensor& gradient) {
  arrived_[parameter] = 1;
  const Slot* slot = slot_of_[parameter];
  if (slot == nullptr) return;
  const Unit& unit = units_[unit_of_[parameter]];
  UnitState& state = unit_states_[unit_of_[parameter]];
  if (!state.flat.defined()) state.flat = borrow_flat(unit);
  // In the order of the parameter's memory, which is that of its shard.
  const at::Tensor& values = parameters_[parameter];
  at::Tensor place = state.flat.as_strided(
      values.sizes(), values.strides(), state.flat.storage_offset() + slot->offset);
  at::mul_out(place, gradient, at::scalar_tensor(scale_, at::TensorOptions(at::kDouble)));
  ++state.num_arrived;
}

void GradientShards::reduce_ready_units(bool at_end) {
  while (num_reduced_ < units_.size()) {
    const std::size_t unit = units_.size() - 1 - num_reduced_;
    if (!at_end && unit_states_[unit].num_arrived < units_[unit].slots.size()) return;
    reduce(unit);
    ++num_reduced_;
  }
}

void GradientShards::reduce(std::size_t unit) {
  UnitState& state = unit_states_[unit];
  if (!state.flat.defined()) state.flat = borrow_flat(units_[unit]);
  clear_gaps(unit);
  state.shard = at::empty({units_[unit].shard_numel}, state.flat.options());
  group_->reduce_scatter(state.shard, state.flat, "reducing gradients");
  live_bytes_ -= static_cast<std::int64_t>(state.flat.nbytes());
  spare_.push_back(std::exchange(state.flat, at::Tensor()));
}

// Zero where no gradient was written: between slots, behind the last one, and in slots without a gradient.
void GradientShards::clear_gaps(std::size_t unit) {
  const at::Tensor& flat = unit_states_[unit].flat;
  std::int64_t written = 0;
  for (const Slot& slot : units_[unit].slots) {
    if (arrived_[slot.parameter] == 0) continue;
    if (slot.offset > written) flat.narrow(0, written, slot.offset - written).zero_();
    written = slot.offset + slot.numel;
  }
  if (flat.numel() > written) flat.narrow(0, written, flat.numel() - written).zero_();
}

at::Tensor GradientShards::borrow_flat(const Unit& unit) {
  const std::int64_t numel = unit.shard_numel * group_->size();
  const auto fits = [&](const at::Tensor& flat) {
    return flat.numel() == numel && flat.scalar_type() == unit.dtype;
  };
  at::Tensor flat;
  if (const auto found = std::find_if(spare_.begin(), spare_.end(), fits); found != spare_.end()) {
    flat = std::move(*found);
    spare_.erase(found);
  } else {
    spare_.clear();
    flat = at::empty({numel}, unit.dtype);
  }
  live_bytes_ += static_cast<std::int64_t>(flat.nbytes());
  peak_bytes_ = std::max(peak_bytes_, live_bytes_);
  return flat;
}

bool GradientShards::finish(bool has_others) {
  if (state_ == State::kIdle) return false;
  const at::NoGradGuard no_grad;
  if (state_ == State::kArmed && !call_roll(has_others)) return false;
  reduce_ready_units(true);
  agree_on_use();
  state_ = State::kIdle;
  return true;
}

void GradientShards::agree_on_use() {
  at::Tensor used = at::empty({static_cast<std::int64_t>(arrived_.size())}, at::kInt);
  std::copy(arrived_.begin(), arrived_.end(), used.data_ptr<int>());
  group_->all_reduce_(used, Reduction::kMax, "comparing which parameters have gradients");
  std::copy_n(used.const_data_ptr<int>(), was_used_.size(), was_used_.begin());
}

at::Tensor GradientShards::take_gradient(std::size_t unit) {
  return std::exchange(unit_states_.at(unit).shard, at::Tensor());
}

}  // namespace accel::sharding
