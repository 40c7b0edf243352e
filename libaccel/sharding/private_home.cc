#include <utility>

#include "libaccel/large_tensor.h"
#include "libaccel/process/process_group.h"
#include "libaccel/sharding/parameter_home.h"

namespace accel::sharding {
namespace {

class PrivateHome final : public ParameterHome {
 public:
  PrivateHome(const std::vector<Unit>& units, std::shared_ptr<ProcessGroup> group)
      : units_(units), group_(std::move(group)) {
    for (const Unit& unit : units_) {
      flats_.push_back(empty_large_tensor({group_->size() * unit.shard_numel}, unit.dtype).zero_());
    }
  }

  void take_in(std::vector<NamedParameter>& parameters) override {
    for (std::size_t unit = 0; unit < units_.size(); ++unit)
      place_parameters(units_[unit], flats_[unit], parameters);
  }
  [[nodiscard]] const at::Tensor& writable(std::size_t unit) const override {
    return flats_.at(unit);
  }
  [[nodiscard]] bool is_shared() const noexcept override { return false; }
  void before_write() override {}
  void begin_load() override {}
  void end_load() override {}

  void publish(std::span<const std::size_t> units) override {
    for (const std::size_t unit : units) {
      const std::int64_t numel = units_[unit].shard_numel;
      // Backends may write the output before they have read the input.
      const at::Tensor own = flats_[unit].narrow(0, group_->rank() * numel, numel).clone();
      group_->all_gather_into(flats_[unit], own, "gathering the parameters of a unit");
    }
  }

 private:
  std::vector<Unit> units_;
  std::shared_ptr<ProcessGroup> group_;
  std::vector<at::Tensor> flats_;
};

}  // namespace

std::unique_ptr<ParameterHome> make_private_home(const std::vector<Unit>& units,
                                                 std::shared_ptr<ProcessGroup> group) {
  return std::make_unique<PrivateHome>(units, std::move(group));
}

}  // namespace accel::sharding
