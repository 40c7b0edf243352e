// Parameters of ranks with devices, of which each rank holds its shards, and units whole while operators use them.
//
// A parameter is a view of its unit's storage, as elsewhere. That storage has memory while the unit is there (device_units.h); its owner
// brings the unit in before an operator reads, and refuses operators that write: what they wrote would be lost. The optimizer writes to
// the shards while all units are away. So no device waits for another one here: who gathers next does.

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>

#include <accel/env_contract.h>
#include <accel/error.h>
#include <accel/state.h>
#include <accel/types.h>

#include "libaccel/engine/homes/device_units.h"
#include "libaccel/engine/homes/gated_home.h"
#include "libaccel/engine/homes/page_budget.h"
#include "libaccel/engine/homes/parameter_home.h"
#include "libaccel/engine/process/agreement.h"

namespace accel::sharding {
namespace {

// Of a unit. Lives as long as the storage, and that as views of parameters, which may outlive the home.
class UnitStorage final : public interception::ParameterStorage {
 public:
  UnitStorage(std::shared_ptr<DeviceUnits> units,
              std::size_t unit,
              std::vector<pager::GuardLabel> labels)
      : units_(std::move(units)), unit_(unit), labels_(std::move(labels)) {}
  ~UnitStorage() override { units_->set_storage(unit_, nullptr); }

  void before(interception::OperatorRun& run,
              const c10::TensorImpl& tensor,
              bool is_written) const override {
    if (is_written) {
      throw Error(
          ErrorCode::kUnsupported,
          std::string(run.name()) + " would write to the parameter " + name_of(tensor) +
              ", of which each rank has a part: the whole is on the device for a moment",
          "change it before prepare(), by the prepared optimizer's step, or by load_state()");
    }
    units_->use(run, unit_);
  }

  [[nodiscard]] std::string name_of(const c10::TensorImpl& tensor) const override {
    const std::size_t at = static_cast<std::size_t>(tensor.storage_offset()) * tensor.itemsize();
    const auto behind = std::upper_bound(
        labels_.begin(), labels_.end(), at, [](std::size_t place, const pager::GuardLabel& label) {
          return place < label.offset;
        });
    return behind == labels_.begin() ? labels_.front().name : std::prev(behind)->name;
  }

  [[nodiscard]] std::shared_ptr<void> hold() const override {
    units_->hold(unit_);
    return {units_.get(), [units = units_, unit = unit_](void*) { units->let_go(unit); }};
  }

 private:
  std::shared_ptr<DeviceUnits> units_;
  std::size_t unit_;
  std::vector<pager::GuardLabel> labels_;
};

class DeviceHome final : public ParameterHome {
 public:
  DeviceHome(std::vector<Unit> units,
             std::vector<std::vector<pager::GuardLabel>> labels,
             std::shared_ptr<ProcessGroup> group,
             const DeviceUnitsOptions& options)
      : units_(std::move(units)),
        group_(group),
        on_device_(std::make_shared<DeviceUnits>(units_, std::move(group), options)) {
    for (std::size_t unit = 0; unit < units_.size(); ++unit) {
      c10::Storage storage(
          c10::Storage::use_byte_size_t(),
          units_[unit].bytes(),
          interception::owned_pointer(
              nullptr,
              std::make_unique<UnitStorage>(on_device_, unit, std::move(labels[unit])),
              options.device),
          /*allocator=*/nullptr,
          /*resizable=*/false);
      on_device_->set_storage(unit, storage.unsafeGetStorageImpl());
      const at::Tensor nothing =
          at::empty({0}, at::TensorOptions(units_[unit].dtype).device(options.device));
      wholes_.push_back(
          interception::make_owned(nothing, std::move(storage), units_[unit].dtype, 0));
    }
  }

  void take_in(std::vector<NamedParameter>& parameters) override {
    for (std::size_t unit = 0; unit < units_.size(); ++unit)
      place_parameters(units_[unit], wholes_[unit], parameters);
  }
  [[nodiscard]] at::Tensor own_shard(std::size_t unit) const override {
    return on_device_->shard(unit);
  }
  [[nodiscard]] bool is_shared() const noexcept override { return false; }
  [[nodiscard]] bool is_paged() const noexcept override { return true; }
  [[nodiscard]] bool is_collective() const noexcept override { return true; }
  [[nodiscard]] WholeBytes whole_bytes() const override {
    return {on_device_->live_bytes(), on_device_->peak_bytes()};
  }

  void before_write() override {
    on_device_->refuse_other_orders();
    give_back_on_all_ranks([this] { return on_device_->give_all_back(); },
                           *group_,
                           "waiting for the ends of all backwards");
  }
  void begin_evaluation() override { on_device_->begin_evaluation(); }
  void publish(std::span<const std::size_t>) override { on_device_->end_step(); }
  void begin_load() override {}
  void end_load() override {}

 private:
  std::vector<Unit> units_;
  std::shared_ptr<ProcessGroup> group_;
  std::shared_ptr<DeviceUnits> on_device_;
  std::vector<at::Tensor> wholes_;  // without elements, in the storages of the units
};

// What all ranks do alike: they gather together. The smallest budget and the shortest look ahead of all.
PagingLimits agreed_limits(const PagingLimits& limits,
                           std::uint64_t largest_unit_bytes,
                           ProcessGroup& group) {
  PagingLimits agreed = limits;
  const auto find = [&] {
    agreed.max_live_bytes = live_bytes(limits, largest_unit_bytes, process_env());
  };
  jointly(find, &group, "asking whether every rank may hold the largest unit");
  at::Tensor said = at::empty({2}, at::kLong);
  auto* const numbers = said.mutable_data_ptr<std::int64_t>();
  numbers[0] = -static_cast<std::int64_t>(*agreed.max_live_bytes);
  numbers[1] = -std::int64_t{agreed.units_ahead};
  group.all_reduce_(said, Reduction::kMax, "comparing the limits of units in memory");
  agreed.max_live_bytes = static_cast<std::uint64_t>(-numbers[0]);
  agreed.units_ahead = static_cast<int>(-numbers[1]);
  return agreed;
}

}  // namespace

std::unique_ptr<ParameterHome> make_device_home(const std::vector<Unit>& units,
                                                std::vector<std::vector<pager::GuardLabel>> labels,
                                                std::shared_ptr<ProcessGroup> group,
                                                const PagingLimits& limits,
                                                c10::Device device) {
  std::size_t largest = 0;
  for (const Unit& unit : units) largest = std::max(largest, unit.bytes());
  const PagingLimits agreed = agreed_limits(limits, largest, *group);
  return std::make_unique<DeviceHome>(units,
                                      std::move(labels),
                                      std::move(group),
                                      DeviceUnitsOptions{.device = device,
                                                         .max_live_bytes = *agreed.max_live_bytes,
                                                         .units_ahead = agreed.units_ahead,
                                                         .checks_order = PartialState().debug()});
}

}  // namespace accel::sharding
