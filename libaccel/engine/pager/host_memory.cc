#include "libaccel/engine/pager/host_memory.h"

#include <cstring>

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/from_blob.h>

namespace accel::pager {
namespace {

// Copies between tensors of the same number of elements. A page is filled in the middle of an operator, below autograd,
// on whatever thread: nothing of that may reach the copy.
void copy(const at::Tensor& from, at::Tensor& to) {
  if (from.scalar_type() == to.scalar_type()) {
    if (from.nbytes() > 0) std::memcpy(to.mutable_data_ptr(), from.const_data_ptr(), from.nbytes());
    return;
  }
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  to.copy_(from);
}

at::Tensor page_of(const Unit& unit, const Slot& slot, const GuardRange& range) {
  return at::from_blob(range.begin() + unit.bytes_of(slot.offset),
                       {slot.numel},
                       at::TensorOptions().dtype(unit.dtype));
}

}  // namespace

HostMemory::HostMemory(const UnitLayout& layout, std::span<const at::Tensor> values)
    : layout_(layout) {
  const at::NoGradGuard no_grad;
  for (const at::Tensor& value : values) values_.push_back(value.detach().clone());
}

void HostMemory::fill(std::size_t unit, GuardRange& range) {
  range.commit();
  for (const Slot& slot : layout_.units[unit].slots) {
    at::Tensor page = page_of(layout_.units[unit], slot, range);
    copy(values_[slot.parameter], page);
  }
}

void HostMemory::release(std::size_t unit,
                         GuardRange& range,
                         std::span<const std::size_t> written) {
  for (const std::size_t index : written) {
    const Slot& slot = layout_.units[unit].slots[index];
    copy(page_of(layout_.units[unit], slot, range), values_[slot.parameter]);
  }
}

}  // namespace accel::pager
