#include "libaccel/sharding/master_shards.h"

#include <utility>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include "libaccel/process/process_group.h"

namespace accel::sharding {

MasterShards::MasterShards(std::vector<Unit> units, std::shared_ptr<ProcessGroup> group)
    : units_(std::move(units)), group_(std::move(group)) {
  for (const Unit& unit : units_) shards_.push_back(at::zeros({unit.shard_numel}, unit.dtype));
}

void MasterShards::round_whole(at::Tensor parameter, at::ScalarType dtype) {
  at::Tensor full = parameter.variable_data();
  at::Tensor rounded = full.to(dtype);
  parameter.set_data(rounded);
  wholes_.push_back({std::move(parameter), std::move(full), std::move(rounded)});
}

void MasterShards::write_to(const ParameterHome& home, std::span<const std::size_t> units) const {
  const at::NoGradGuard no_grad;
  for (const std::size_t unit : units) {
    const std::int64_t numel = units_[unit].shard_numel;
    home.writable(unit).narrow(0, group_->rank() * numel, numel).copy_(shards_[unit]);
  }
}

void MasterShards::expose(std::vector<NamedParameter>& parameters) {
  if (num_exposures_ > 0) {
    ++num_exposures_;
    return;
  }
  const at::NoGradGuard no_grad;
  std::vector<at::Tensor> wholes;
  for (std::size_t unit = 0; unit < units_.size(); ++unit) {
    wholes.push_back(at::empty({group_->size() * units_[unit].shard_numel}, units_[unit].dtype));
    group_->all_gather_into(wholes.back(), shards_[unit], "gathering parameters in full precision");
  }
  rounded_.clear();
  for (const NamedParameter& parameter : parameters)
    rounded_.push_back(parameter.tensor.variable_data());
  exposed_ = std::move(wholes);
  for (std::size_t unit = 0; unit < units_.size(); ++unit)
    place_parameters(units_[unit], exposed_[unit], parameters);
  for (Whole& whole : wholes_) whole.parameter.set_data(whole.full);
  versions_.clear();
  for (const NamedParameter& parameter : parameters)
    versions_.push_back(parameter.tensor._version());
  num_exposures_ = 1;
}

void MasterShards::take_exposed(const std::vector<NamedParameter>& parameters) {
  const at::NoGradGuard no_grad;
  for (std::size_t unit = 0; unit < units_.size(); ++unit) {
    const std::int64_t own = group_->rank() * units_[unit].shard_numel;
    for (const Piece& piece : pieces_of(units_[unit], group_->rank())) {
      if (parameters[piece.parameter].tensor._version() == versions_[piece.parameter]) continue;
      shards_[unit]
          .narrow(0, piece.unit_offset - own, piece.numel)
          .copy_(exposed_[unit].narrow(0, piece.unit_offset, piece.numel));
    }
  }
  for (Whole& whole : wholes_) whole.rounded.copy_(whole.full);
}

void MasterShards::withdraw(std::vector<NamedParameter>& parameters) {
  if (num_exposures_ == 0 || --num_exposures_ > 0) return;
  for (std::size_t i = 0; i < parameters.size(); ++i) parameters[i].tensor.set_data(rounded_[i]);
  for (Whole& whole : wholes_) whole.parameter.set_data(whole.rounded);
  rounded_.clear();
  exposed_.clear();
}

}  // namespace accel::sharding
