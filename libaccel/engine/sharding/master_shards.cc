#include "libaccel/engine/sharding/master_shards.h"

#include <algorithm>
#include <unordered_set>
#include <utility>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>

#include "libaccel/engine/optim/state_file.h"
#include "libaccel/engine/process/process_group.h"
#include "libaccel/tensors/large_tensor.h"

namespace accel::sharding {
namespace {

// Of a shard on disk, what is in memory at once while it is rounded.
constexpr std::int64_t kPartNumel = std::int64_t{4} << 20;

// Whether each part of its parameters is a range of the file that they are saved in.
bool is_in_row_major_order(const Unit& unit, const std::vector<NamedParameter>& parameters) {
  return std::all_of(unit.slots.begin(), unit.slots.end(), [&](const Slot& slot) {
    return parameters[slot.parameter].tensor.is_contiguous();
  });
}

}  // namespace

MasterShards::MasterShards(std::vector<Unit> units,
                           std::shared_ptr<ProcessGroup> group,
                           c10::Device device,
                           const std::filesystem::path& folder)
    : units_(std::move(units)),
      group_(std::move(group)),
      device_(device),
      are_on_disk_(!folder.empty()) {
  if (!are_on_disk_) {
    for (const Unit& unit : units_) {
      const auto options = at::TensorOptions(unit.dtype).device(device_);
      shards_.push_back(empty_large_tensor({unit.shard_numel}, options).zero_());
    }
    return;
  }
  std::vector<at::Tensor> like;
  for (const Unit& unit : units_)
    like.push_back(at::empty({unit.shard_numel}, at::TensorOptions(unit.dtype).device(at::kMeta)));
  shards_ = StateFile(folder).make(like);
}

MasterShards::MasterShards(std::vector<Unit> units,
                           std::shared_ptr<ProcessGroup> group,
                           const ParameterHome& home)
    : units_(std::move(units)), group_(std::move(group)), device_(c10::kCPU), are_the_homes_(true) {
  for (std::size_t unit = 0; unit < units_.size(); ++unit) shards_.push_back(home.own_shard(unit));
  if (!shards_.empty()) device_ = shards_.front().device();
}

void MasterShards::round_whole(at::Tensor parameter, at::ScalarType dtype) {
  at::Tensor full = parameter.variable_data();
  at::Tensor rounded = full.to(dtype);
  parameter.set_data(rounded);
  wholes_.push_back({std::move(parameter), std::move(full), std::move(rounded)});
}

void MasterShards::round_buffer(at::Tensor buffer, at::ScalarType dtype) {
  const at::ScalarType own = buffer.scalar_type();
  at::Tensor rounded = buffer.variable_data().to(dtype);
  buffer.set_data(rounded);
  buffers_.push_back({{std::move(buffer), at::Tensor(), std::move(rounded)}, own});
}

void MasterShards::write_to(const ParameterHome& home, std::span<const std::size_t> units) const {
  if (are_the_homes_) return;
  for (const std::size_t unit : units) {
    const std::int64_t most =
        are_on_disk_ || home.is_on_disk() ? kPartNumel : units_[unit].shard_numel;
    for (std::int64_t begin = 0; begin < units_[unit].shard_numel; begin += most) {
      const std::int64_t numel = std::min(most, units_[unit].shard_numel - begin);
      const auto range = StateRange::of(shards_[unit].narrow(0, begin, numel));
      if (range) range->fetch(StateRange::Access::kRead);
      write_part(home, unit, begin, numel);
      if (range) range->store();
    }
  }
}

void MasterShards::write_part(const ParameterHome& home,
                              std::size_t unit,
                              std::int64_t begin,
                              std::int64_t numel) const {
  const at::NoGradGuard no_grad;
  const at::Tensor rounded = home.own_shard(unit).narrow(0, begin, numel);
  rounded.copy_(shards_[unit].narrow(0, begin, numel));
  if (const auto range = StateRange::of(rounded)) range->store();
}

void MasterShards::take_written(const ParameterHome& home, std::span<const std::size_t> units) {
  const at::NoGradGuard no_grad;
  for (const std::size_t unit : units) {
    const at::Tensor own = home.own_shard(unit);
    at::Tensor& master = shards_[unit];
    const at::Tensor is_left_alone = master.to(own.scalar_type()).eq(own);
    master.copy_(at::where(is_left_alone, master, own.to(master.scalar_type())));
  }
}

at::Tensor MasterShards::full_values_of(const at::Tensor& tensor) const {
  for (const Whole& whole : wholes_) {
    if (whole.parameter.is_same(tensor)) return whole.full;
  }
  for (const auto& [whole, dtype] : buffers_) {
    if (whole.parameter.is_same(tensor)) return whole.rounded.to(dtype);
  }
  return {};
}

at::Tensor MasterShards::gathered(std::size_t unit) const {
  at::Tensor whole =
      at::empty({units_[unit].numel()}, at::TensorOptions(units_[unit].dtype).device(device_));
  group_->all_gather_into(whole, shards_[unit], "gathering parameters in full precision");
  return whole;
}

std::vector<bool> MasterShards::wanted_units(const std::vector<NamedParameter>& parameters,
                                             FullParameters which,
                                             std::span<const at::Tensor> asked) const {
  std::unordered_set<const c10::TensorImpl*> named;
  for (const at::Tensor& tensor : asked) named.insert(tensor.unsafeGetTensorImpl());
  const auto is_wanted = [&](const Unit& unit) {
    if (which == FullParameters::kAll || which == FullParameters::kNone)
      return which == FullParameters::kAll;
    return !is_in_row_major_order(unit, parameters) ||
           std::any_of(unit.slots.begin(), unit.slots.end(), [&](const Slot& slot) {
             return named.contains(parameters[slot.parameter].tensor.unsafeGetTensorImpl());
           });
  };
  std::vector<bool> wanted;
  for (const Unit& unit : units_) wanted.push_back(is_wanted(unit));
  return wanted;
}

std::vector<std::size_t> MasterShards::units_to_gather(const std::vector<bool>& wanted,
                                                       FullParameters which) const {
  std::vector<std::size_t> units;
  if (units_.empty()) return units;
  const bool is_agreed_on = num_exposures_ > 0 || which == FullParameters::kAsked;
  at::Tensor missing;  // by unit; not 0: some rank wants it and does not have it yet
  if (is_agreed_on) {
    missing = at::zeros({std::ssize(units_)}, at::kLong);
    for (std::size_t unit = 0; unit < units_.size(); ++unit) {
      if (wanted[unit] && !is_exposed(unit)) missing.data_ptr<std::int64_t>()[unit] = 1;
    }
    group_->all_reduce_(missing, Reduction::kMax, "comparing what ranks have in full precision");
  }
  for (std::size_t unit = 0; unit < units_.size(); ++unit) {
    // Else each rank knows what the others want.
    const bool is_gathered = is_agreed_on ? missing.const_data_ptr<std::int64_t>()[unit] != 0
                                          : which != FullParameters::kUndivided || wanted[unit];
    if (is_gathered) units.push_back(unit);
  }
  return units;
}

void MasterShards::expose_undivided() {
  if (std::exchange(shows_undivided_, true)) return;
  for (Whole& whole : wholes_) whole.parameter.set_data(whole.full);
  for (auto& [whole, dtype] : buffers_) {
    whole.full = whole.rounded.to(dtype);
    whole.parameter.set_data(whole.full);
  }
}

void MasterShards::expose(std::vector<NamedParameter>& parameters,
                          FullParameters which,
                          std::span<const at::Tensor> asked) {
  const at::NoGradGuard no_grad;
  const std::vector<bool> wanted = wanted_units(parameters, which, asked);
  std::vector<at::Tensor> wholes(units_.size());
  for (const std::size_t unit : units_to_gather(wanted, which)) {
    at::Tensor whole = gathered(unit);
    if (wanted[unit]) wholes[unit] = std::move(whole);
  }
  if (num_exposures_++ == 0) {
    exposed_.assign(units_.size(), at::Tensor());
    rounded_.assign(parameters.size(), at::Tensor());
    versions_.assign(parameters.size(), 0);
  }
  for (std::size_t unit = 0; unit < units_.size(); ++unit) {
    if (!wholes[unit].defined() || exposed_[unit].defined()) continue;
    exposed_[unit] = std::move(wholes[unit]);
    for (const Slot& slot : units_[unit].slots)
      rounded_[slot.parameter] = parameters[slot.parameter].tensor.variable_data();
    place_parameters(units_[unit], exposed_[unit], parameters);
    for (const Slot& slot : units_[unit].slots)
      versions_[slot.parameter] = parameters[slot.parameter].tensor._version();
  }
  if (which != FullParameters::kNone) expose_undivided();
}

void MasterShards::take_exposed(const std::vector<NamedParameter>& parameters) {
  const at::NoGradGuard no_grad;
  for (std::size_t unit = 0; unit < units_.size(); ++unit) {
    if (!exposed_[unit].defined()) continue;
    const std::int64_t own = group_->rank() * units_[unit].shard_numel;
    for (const Piece& piece : pieces_of(units_[unit], group_->rank())) {
      if (parameters[piece.parameter].tensor._version() == versions_[piece.parameter]) continue;
      shards_[unit]
          .narrow(0, piece.unit_offset - own, piece.numel)
          .copy_(exposed_[unit].narrow(0, piece.unit_offset, piece.numel));
    }
  }
  for (Whole& whole : wholes_) whole.rounded.copy_(whole.full);
  for (auto& [whole, dtype] : buffers_) whole.rounded.copy_(whole.full);
}

void MasterShards::withdraw(std::vector<NamedParameter>& parameters) {
  if (num_exposures_ == 0 || --num_exposures_ > 0) return;
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    if (rounded_[i].defined()) parameters[i].tensor.set_data(rounded_[i]);
  }
  rounded_.clear();
  exposed_.clear();
  if (!std::exchange(shows_undivided_, false)) return;
  for (Whole& whole : wholes_) whole.parameter.set_data(whole.rounded);
  for (auto& [whole, dtype] : buffers_) {
    whole.parameter.set_data(whole.rounded);
    whole.full.reset();
  }
}

}  // namespace accel::sharding
