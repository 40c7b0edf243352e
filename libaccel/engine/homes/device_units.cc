#include "libaccel/engine/homes/device_units.h"

#include <algorithm>
#include <exception>
#include <string>
#include <string_view>
#include <utility>

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <c10/core/InferenceMode.h>

#include <accel/error.h>
#include <accel/types.h>

#include "libaccel/engine/pager/paging_policy.h"

namespace accel::sharding {
namespace {

constexpr const char* kGathering = "gathering the parameters of a unit";
constexpr const char* kSameOrder =
    "let every rank run the same modules in the same order, in evaluation too, and see with "
    "accel-launch --debug where they part; or use SHARD_GRAD_OP";
constexpr std::uint64_t kFnvPrime = 0x100000001b3;

// The smallest and the largest of the ranks' numbers.
std::pair<std::int64_t, std::int64_t> range_over_ranks(std::int64_t own,
                                                       ProcessGroup& group,
                                                       std::string_view operation) {
  at::Tensor said = at::empty({2}, at::kLong);
  auto* const numbers = said.mutable_data_ptr<std::int64_t>();
  numbers[0] = -own;
  numbers[1] = own;
  group.all_reduce_(said, Reduction::kMax, operation);
  return {-numbers[0], numbers[1]};
}

void unpin_unit(void* units, std::size_t unit) noexcept {
  static_cast<DeviceUnits*>(units)->let_go(unit);
}

}  // namespace

DeviceUnits::DeviceUnits(std::vector<Unit> units,
                         std::shared_ptr<ProcessGroup> group,
                         const DeviceUnitsOptions& options)
    : units_(std::move(units)),
      group_(std::move(group)),
      options_(options),
      pages_(std::make_unique<Page[]>(units_.size())),
      trace_(units_.size()) {
  for (std::size_t unit = 0; unit < units_.size(); ++unit) {
    unit_bytes_.push_back(units_[unit].bytes());
    const auto type = at::TensorOptions(units_[unit].dtype).device(options_.device);
    pages_[unit].shard = at::zeros({units_[unit].shard_numel}, type);
  }
}

DeviceUnits::~DeviceUnits() {
  for (std::size_t unit = 0; unit < units_.size(); ++unit) {
    try {
      if (auto& coming = pages_[unit].coming) coming->wait();
    } catch (const std::exception&) {
      // The group is over: nothing is written any more.
    }
  }
}

void DeviceUnits::use(interception::OperatorRun& run, std::size_t unit) {
  for (const auto& held : run.held())
    if (held.owner == this && held.unit == unit) return;
  hold(unit);
  run.hold({.owner = this, .unit = unit, .release = &unpin_unit});
}

void DeviceUnits::hold(std::size_t unit) {
  const std::lock_guard lock(mutex_);
  const bool moves_on = trace_.current() != unit;
  trace_.use(unit);
  bring_in(unit);
  pages_[unit].pins.fetch_add(1, std::memory_order_relaxed);
  if (!moves_on) return;
  try {
    fetch_ahead();
  } catch (...) {
    let_go(unit);
    throw;
  }
}

void DeviceUnits::let_go(std::size_t unit) noexcept {
  pages_[unit].pins.fetch_sub(1, std::memory_order_relaxed);
}

void DeviceUnits::bring_in(std::size_t unit) {
  Page& page = pages_[unit];
  if (!page.whole.defined()) {
    make_room(unit);
    begin_gather(unit);
  }
  if (!page.coming) return;
  try {
    std::exchange(page.coming, std::nullopt)->wait();
  } catch (...) {
    send_away(unit);
    throw;
  }
}

// What is made here is used by operators of any mode.
void DeviceUnits::begin_gather(std::size_t unit) {
  const c10::InferenceMode ordinary(false);
  if (options_.checks_order) refuse_other_unit(unit);
  order_ = (order_ ^ unit) * kFnvPrime;
  Page& page = pages_[unit];
  at::Tensor whole = at::empty({units_[unit].numel()}, page.shard.options());
  page.coming.emplace(group_->begin_all_gather_into(whole, page.shard, kGathering));
  interception::move_owned(*page.storage, whole.mutable_data_ptr());
  page.whole = std::move(whole);
  live_bytes_ += unit_bytes_[unit];
  peak_bytes_ = std::max(peak_bytes_, live_bytes_);
}

std::vector<std::size_t> DeviceUnits::evictable() const {
  std::vector<std::size_t> found;
  for (std::size_t unit = 0; unit < units_.size(); ++unit) {
    if (pages_[unit].whole.defined() && pages_[unit].pins.load(std::memory_order_relaxed) == 0)
      found.push_back(unit);
  }
  return found;
}

void DeviceUnits::make_room(std::size_t unit) {
  while (live_bytes_ + unit_bytes_[unit] > options_.max_live_bytes) {
    const auto victim = pager::choose_victim(trace_, evictable());
    if (!victim) return;
    send_away(*victim);
  }
}

// A gather that nobody has waited for writes until it ends.
void DeviceUnits::send_away(std::size_t unit) {
  Page& page = pages_[unit];
  if (page.storage != nullptr) interception::move_owned(*page.storage, nullptr);
  const at::Tensor whole = std::exchange(page.whole, at::Tensor());
  live_bytes_ -= unit_bytes_[unit];
  if (auto coming = std::exchange(page.coming, std::nullopt)) coming->wait();
}

void DeviceUnits::fetch_ahead() {
  if (options_.units_ahead == 0 || !trace_.is_known()) return;
  const auto depth = static_cast<std::size_t>(options_.units_ahead);
  for (int count = 0; count < options_.units_ahead; ++count) {
    std::vector<bool> is_away(units_.size());
    for (std::size_t unit = 0; unit < units_.size(); ++unit)
      is_away[unit] = !pages_[unit].whole.defined() && pages_[unit].storage != nullptr;
    const auto unused = evictable();
    const pager::RoomView room{unit_bytes_, unused, live_bytes_, options_.max_live_bytes};
    const auto next = pager::choose_prefetch(trace_, room, is_away, depth);
    if (!next) return;
    for (const std::size_t victim : next->victims) send_away(victim);
    begin_gather(next->unit);
  }
}

void DeviceUnits::refuse_other_unit(std::size_t unit) {
  const auto own = static_cast<std::int64_t>(unit);
  const auto [least, most] = range_over_ranks(own, *group_, "comparing which units the ranks need");
  if (least == most) return;
  throw Error(ErrorCode::kInvalidArgument,
              "rank " + std::to_string(group_->rank()) + " needs unit " + std::to_string(own) +
                  " of a model that is divided over devices, and another rank unit " +
                  std::to_string(most == own ? least : most),
              kSameOrder);
}

void DeviceUnits::refuse_other_orders() {
  std::int64_t own = 0;
  {
    const std::lock_guard lock(mutex_);
    own = static_cast<std::int64_t>(order_ >> 1);
  }
  const auto [least, most] =
      range_over_ranks(own, *group_, "comparing in which order the ranks have gathered units");
  if (least == most) return;
  forget();
  throw Error(ErrorCode::kInvalidArgument,
              "ranks have gathered different units of a model that is divided over devices since "
              "the last step: they have run different modules, so what they computed is wrong",
              kSameOrder);
}

// So that ranks decide alike again, after load_state().
void DeviceUnits::forget() {
  const std::lock_guard lock(mutex_);
  for (const std::size_t unit : evictable()) send_away(unit);
  trace_ = pager::StepTrace(units_.size());
  order_ = kNoUnits;
}

bool DeviceUnits::give_all_back() {
  const std::lock_guard lock(mutex_);
  for (const std::size_t unit : evictable()) send_away(unit);
  return live_bytes_ == 0;
}

void DeviceUnits::end_step() {
  const std::lock_guard lock(mutex_);
  trace_.end_step();
  order_ = kNoUnits;
}

// The order that ranks compare goes on to the end of the step.
void DeviceUnits::begin_evaluation() {
  const std::lock_guard lock(mutex_);
  trace_.end_step();
}

std::int64_t DeviceUnits::live_bytes() const {
  const std::lock_guard lock(mutex_);
  return static_cast<std::int64_t>(live_bytes_);
}

std::int64_t DeviceUnits::peak_bytes() const {
  const std::lock_guard lock(mutex_);
  return static_cast<std::int64_t>(peak_bytes_);
}

}  // namespace accel::sharding
