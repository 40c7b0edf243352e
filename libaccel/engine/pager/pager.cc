#include "libaccel/engine/pager/pager.h"

#include <algorithm>
#include <map>
#include <set>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_strided.h>

#include <accel/error.h>

#include "libaccel/engine/pager/host_memory.h"
#include "libaccel/engine/pager/paged_storage.h"

namespace accel::pager {
namespace {

// Why the tensor cannot be paged; nullptr when it can.
const char* paging_obstacle(const at::Tensor& tensor) {
  if (!tensor.defined()) return "is not defined";
  if (tensor.layout() != at::kStrided) return "is sparse";
  if (!tensor.device().is_cpu()) return "is not on the CPU";
  if (tensor.is_quantized()) return "is quantized";
  if (tensor.is_inference()) return "was made in inference mode";
  if (!tensor.is_leaf()) return "is no leaf: it was computed from another tensor";
  if (paged_storage(tensor) != nullptr) return "is paged already";
  return nullptr;
}

void check_pageable(const std::vector<NamedTensor>& parameters) {
  for (const NamedTensor& parameter : parameters)
    if (const char* what = paging_obstacle(parameter.tensor))
      throw Error(ErrorCode::kUnsupported,
                  "parameter '" + parameter.name + "' cannot be paged: it " + what,
                  "leave it out, or make it an ordinary dense tensor on the CPU");
}

void check_units(const std::vector<Unit>& units, const std::vector<PlannedParameter>& parameters) {
  std::vector<std::int64_t> missing;  // elements, by parameter
  for (const PlannedParameter& parameter : parameters) missing.push_back(parameter.numel);
  bool is_same = true;
  for (const Unit& unit : units) {
    for (const Slot& slot : unit.slots) {
      is_same = is_same && slot.parameter < missing.size() &&
                parameters[slot.parameter].dtype == unit.dtype &&
                std::exchange(missing[slot.parameter], 0) == slot.numel;
    }
  }
  if (is_same && std::all_of(missing.begin(), missing.end(), [](auto numel) { return numel == 0; }))
    return;
  throw Error(ErrorCode::kInvalidArgument,
              "the units that were given have other parameters than those to be paged");
}

}  // namespace

ParameterHold::ParameterHold(std::shared_ptr<PageTable> table, std::vector<std::size_t> units)
    : table_(std::move(table)) {
  try {
    for (const std::size_t unit : units) {
      table_->hold(unit);
      units_.push_back(unit);
    }
  } catch (...) {
    for (const std::size_t unit : units_) table_->let_go(unit);
    throw;
  }
}

ParameterHold::~ParameterHold() {
  if (table_ == nullptr) return;
  for (const std::size_t unit : units_) table_->let_go(unit);
}

std::shared_ptr<void> hold_pages(std::span<const at::Tensor> tensors) {
  struct Holds {
    std::vector<ParameterHold> pages;
    std::vector<std::shared_ptr<void>> others;  // of owners that are no pagers
  };
  std::map<std::shared_ptr<PageTable>, std::set<std::size_t>> units;
  auto holds = std::make_shared<Holds>();
  for (const at::Tensor& tensor : tensors) {
    if (const PagedStorage* const storage = paged_storage(tensor)) {
      units[storage->table].insert(storage->place.unit);
    } else if (const auto* const owner = interception::owner_of(*tensor.unsafeGetTensorImpl())) {
      if (auto held = owner->hold()) holds->others.push_back(std::move(held));
    }
  }
  if (units.empty() && holds->others.empty()) return nullptr;
  for (const auto& [table, own] : units)
    holds->pages.emplace_back(table, std::vector<std::size_t>(own.begin(), own.end()));
  return holds;
}

Pager::Pager(std::vector<NamedTensor> parameters, PagerOptions options, MakeSource make_source)
    : options_(std::move(options)), make_source_(std::move(make_source)) {
  check_pageable(parameters);
  if (options_.learns_units && options_.page_dtype)
    throw Error(ErrorCode::kInvalidArgument,
                "learns_units with a page_dtype would round the values that the source keeps",
                "run a step without page_dtype, and give first_use_order() as order");
  if (!make_source_)
    make_source_ = [](const UnitLayout& layout, std::span<const at::Tensor> values) {
      return std::make_unique<HostMemory>(layout, values);
    };
  std::vector<std::size_t> order_of_groups;
  groups_ = groups_of(std::move(parameters));
  for (const std::size_t given : options_.order)
    for (std::size_t group = 0; group < groups_.size(); ++group)
      if (std::count(groups_[group].given.begin(), groups_[group].given.end(), given) > 0)
        order_of_groups.push_back(group);
  build(order_of_groups);
}

Pager::~Pager() {
  if (options_.stays_paged) return;
  for (Group& group : groups_) give_back(group);
}

std::vector<Pager::Group> Pager::groups_of(std::vector<NamedTensor> parameters) const {
  std::vector<Group> groups;
  std::unordered_map<const void*, std::size_t> by_storage;
  std::unordered_set<const void*> seen;
  for (std::size_t given = 0; given < parameters.size(); ++given) {
    NamedTensor& parameter = parameters[given];
    const at::Tensor& tensor = parameter.tensor;
    if (tensor.nbytes() < options_.resident_below_bytes) continue;
    const void* storage = tensor.storage().unsafeGetStorageImpl();
    const auto [place, is_new] = by_storage.emplace(storage, groups.size());
    if (is_new) groups.emplace_back();
    Group& group = groups[place->second];
    group.given.push_back(given);
    if (!seen.insert(tensor.unsafeGetTensorImpl()).second)
      continue;  // the same tensor under another name
    if (!group.tensors.empty() &&
        group.tensors.front().tensor.scalar_type() != tensor.scalar_type())
      throw Error(ErrorCode::kUnsupported,
                  "parameters '" + group.tensors.front().name + "' and '" + parameter.name +
                      "' share memory under two dtypes, and cannot be paged");
    group.tensors.push_back(std::move(parameter));
  }
  for (Group& group : groups) {
    const at::Tensor& first = group.tensors.front().tensor;
    group.keeps_offsets = group.tensors.size() > 1 || !first.is_non_overlapping_and_dense();
    group.num_elements =
        group.keeps_offsets
            ? static_cast<std::int64_t>(first.storage().nbytes() / first.element_size())
            : first.numel();
    const std::size_t num_sharing = first.storage().use_count();
    if (num_sharing > group.tensors.size() && group.num_elements > 0)
      throw Error(ErrorCode::kUnsupported,
                  "parameter '" + group.tensors.front().name + "' shares its memory with " +
                      std::to_string(num_sharing - group.tensors.size()) +
                      " other tensors (views, detach()), which would not see it change any more",
                  "make such views after the parameters are paged, or let go of them before");
  }
  return groups;
}

// All that is paged of the group, in one dimension; with the key, when the tensors have it.
at::Tensor Pager::flat_values(const Group& group) const {
  const at::NoGradGuard no_grad;
  const at::Tensor& first = group.tensors.front().tensor;
  return first.detach().as_strided(
      {group.num_elements}, {1}, group.keeps_offsets ? 0 : first.storage_offset());
}

void Pager::build(const std::vector<std::size_t>& order) {
  std::vector<PlannedParameter> planned;
  std::vector<at::Tensor> values;
  for (const Group& group : groups_) {
    const NamedTensor& first = group.tensors.front();
    const bool is_converted = options_.page_dtype && first.tensor.is_floating_point();
    planned.push_back({.name = first.name,
                       .numel = group.num_elements,
                       .dtype = is_converted ? *options_.page_dtype : first.tensor.scalar_type()});
    values.push_back(flat_values(group));
  }
  if (options_.units) check_units(*options_.units, planned);
  UnitLayout layout = options_.units ? UnitLayout(std::move(planned), *options_.units)
                                     : lay_out(std::move(planned), order, options_.unit_bytes);
  auto source = make_source_(layout, values);
  values.clear();
  table_ = std::make_shared<PageTable>(
      std::move(layout),
      std::move(source),
      PageTableOptions{options_.max_live_bytes, options_.prefetch_units, options_.may_exceed});
  for (std::size_t parameter = 0; parameter < groups_.size(); ++parameter) {
    if (!is_paged(parameter)) continue;
    const at::Tensor& first = groups_[parameter].tensors.front().tensor;
    if (paged_storage(first) != nullptr) {  // from the units of before
      move_to_pages(first, table_, parameter);
      continue;
    }
    const at::Storage storage = make_paged_storage(table_, parameter);
    for (NamedTensor& tensor : groups_[parameter].tensors)
      put_on_pages(tensor.tensor,
                   storage,
                   table_->layout().parameters[parameter].dtype,
                   groups_[parameter].keeps_offsets ? tensor.tensor.storage_offset() : 0);
  }
}

// A parameter that cannot be read any more stays paged: its storage keeps the table.
void Pager::give_back(Group& group) noexcept {
  try {
    const at::NoGradGuard no_grad;
    if (paged_storage(group.tensors.front().tensor) == nullptr) return;
    const at::Tensor flat = flat_values(group).clone();
    for (NamedTensor& tensor : group.tensors)
      if (paged_storage(tensor.tensor) != nullptr)
        take_off_pages(tensor.tensor,
                       flat.as_strided(tensor.tensor.sizes(),
                                       tensor.tensor.strides(),
                                       group.keeps_offsets ? tensor.tensor.storage_offset() : 0));
  } catch (...) {  // NOLINT: a destructor's work
  }
}

ParameterHold Pager::with_params(const std::vector<std::string>& names, Access access) {
  std::vector<SlotPlace> places;
  if (names.empty()) places = layout().places;
  for (const std::string& name : names) {
    std::size_t parameter = 0;
    const auto has_name = [&](const NamedTensor& tensor) { return tensor.name == name; };
    while (parameter < groups_.size() &&
           std::none_of(
               groups_[parameter].tensors.begin(), groups_[parameter].tensors.end(), has_name))
      ++parameter;
    if (parameter == groups_.size())
      throw Error(ErrorCode::kInvalidArgument,
                  "no paged parameter is called '" + name + "'; the first of " +
                      std::to_string(groups_.size()) + " is '" +
                      (groups_.empty() ? "" : groups_.front().tensors.front().name) + "'");
    places.push_back(layout().places[parameter]);
  }
  std::vector<std::size_t> units;
  for (const SlotPlace place : places) {
    if (place.unit != SlotPlace::kNoUnit) units.push_back(place.unit);
  }
  std::sort(units.begin(), units.end());
  units.erase(std::unique(units.begin(), units.end()), units.end());
  ParameterHold hold(table_, std::move(units));
  if (access == Access::kReadWrite)
    for (const SlotPlace place : places) {
      if (place.unit != SlotPlace::kNoUnit) table_->mark_written(place.unit, place.slot);
    }
  return hold;
}

void Pager::verify() const {
  for (std::size_t parameter = 0; parameter < groups_.size(); ++parameter)
    for (const NamedTensor& tensor : groups_[parameter].tensors) {
      if (!is_paged(parameter)) continue;
      const PagedStorage* storage = paged_storage(tensor.tensor);
      if (storage != nullptr && storage->table == table_ && storage->parameter == parameter)
        continue;
      throw Error(ErrorCode::kUnsupported,
                  "parameter '" + tensor.name +
                      "' left its pages: it was given other memory (module->to(), set_data())",
                  "convert the module before it is paged; for another dtype use page_dtype");
    }
}

void Pager::end_step() {
  verify();
  table_->end_step();
  if (!options_.learns_units || has_learned_) return;
  has_learned_ = true;
  build(table_->first_use_order());
}

std::vector<std::size_t> Pager::first_use_order() const {
  std::vector<std::size_t> order;
  for (const std::size_t parameter : table_->first_use_order())
    order.push_back(groups_[parameter].given.front());
  return order;
}

}  // namespace accel::pager
