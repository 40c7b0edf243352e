// Parameters of which each rank has a copy.
//
// Programs may write to their copy. What all ranks write is taken over by the next step; what some of them write is refused
// (unsynced_writes.h). Where masters are beside the copies, a hash of this rank's part says whether it was written to, by whatever
// way. On a device nobody hashes: each unit counts as written to, and an element that is what its master is rounded to leaves that
// as it is.

#include <numeric>
#include <utility>

#include <accel/state.h>

#include "libaccel/engine/homes/parameter_home.h"
#include "libaccel/engine/homes/unsynced_writes.h"
#include "libaccel/engine/process/process_group.h"
#include "libaccel/tensors/large_tensor.h"
#include "runtime/checkpoint/xxh3.h"

namespace accel::sharding {
namespace {

class PrivateHome final : public ParameterHome {
 public:
  PrivateHome(const std::vector<Unit>& units,
              std::shared_ptr<ProcessGroup> group,
              Masters masters,
              c10::Device device)
      : units_(units),
        group_(std::move(group)),
        masters_(masters),
        hashes_(device.is_cpu() ? units.size() : 0) {
    for (const Unit& unit : units_) {
      const auto options = at::TensorOptions(unit.dtype).device(device);
      flats_.push_back(empty_large_tensor({unit.numel()}, options).zero_());
    }
  }

  void take_in(std::vector<NamedParameter>& parameters) override {
    for (std::size_t unit = 0; unit < units_.size(); ++unit)
      place_parameters(units_[unit], flats_[unit], parameters);
    parameters_ = parameters;
    unsynced_writes_.forget(parameters_);
  }
  [[nodiscard]] at::Tensor own_shard(std::size_t unit) const override {
    const std::int64_t numel = units_[unit].shard_numel;
    return flats_.at(unit).narrow(0, group_->rank() * numel, numel);
  }
  [[nodiscard]] bool is_shared() const noexcept override { return false; }
  void before_write() override {}
  void begin_load() override {}
  void end_load() override {}

  void publish(std::span<const std::size_t> units) override {
    for (const std::size_t unit : units) {
      // Backends may write the output before they have read the input.
      const at::Tensor own = own_shard(unit).clone();
      group_->all_gather_into(flats_[unit], own, "gathering the parameters of a unit");
      if (masters_ == Masters::kBeside && !hashes_.empty())
        hashes_[unit] = hash_of(own_shard(unit));
    }
    unsynced_writes_.forget(parameters_);
  }

  void refuse_unsynced_writes() override { unsynced_writes_.refuse(parameters_, *group_); }

  [[nodiscard]] std::vector<std::size_t> written_units() override {
    std::vector<std::size_t> written;
    if (masters_ == Masters::kNone) return written;
    if (hashes_.empty()) {
      written.resize(units_.size());
      std::iota(written.begin(), written.end(), std::size_t{0});
      return written;
    }
    for (std::size_t unit = 0; unit < units_.size(); ++unit) {
      const std::uint64_t hash = hash_of(own_shard(unit));
      if (std::exchange(hashes_[unit], hash) != hash) written.push_back(unit);
    }
    return written;
  }

 private:
  static std::uint64_t hash_of(const at::Tensor& values) {
    return checkpoint::xxh3_functions().hash(values.const_data_ptr(), values.nbytes());
  }

  std::vector<Unit> units_;
  std::shared_ptr<ProcessGroup> group_;
  std::vector<at::Tensor> flats_;
  Masters masters_;
  std::vector<std::uint64_t> hashes_;       // of this rank's part, by unit; none on a device
  std::vector<NamedParameter> parameters_;  // from take_in() on
  UnsyncedWrites unsynced_writes_{PartialState().debug() ? UnsyncedWrites::Watch::kValues
                                                         : UnsyncedWrites::Watch::kOperators};
};

}  // namespace

std::unique_ptr<ParameterHome> make_private_home(const std::vector<Unit>& units,
                                                 std::shared_ptr<ProcessGroup> group,
                                                 Masters masters,
                                                 c10::Device device) {
  return std::make_unique<PrivateHome>(units, std::move(group), masters, device);
}

}  // namespace accel::sharding
