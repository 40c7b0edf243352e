// HostMemory: a page source that keeps all values in ordinary memory of its own and copies.
//
// The values may be kept in another dtype than that of the pages: fp32 masters behind bf16 pages are rounded when a
// unit is filled. A parameter that was written to through its pages replaces its values here; those that were only
// read keep every bit.
//
// Threads:  as PageSource demands.
// Cost:     the bytes of all values; fill and release copy a unit, or what was written of it.
#pragma once

#include <span>
#include <vector>

#include <ATen/core/Tensor.h>

#include "libaccel/engine/pager/page_source.h"
#include "libaccel/tensors/unit_layout.h"

namespace accel::pager {

class HostMemory : public PageSource {
 public:
  // values: of each parameter of the layout, flat, in the dtype to be kept; copied through operators.
  HostMemory(const UnitLayout& layout, std::span<const at::Tensor> values);

  void fill(std::size_t unit, GuardRange& range) override;
  void release(std::size_t unit, GuardRange& range, std::span<const std::size_t> written) override;

  // The values as they are kept, flat: the same tensor on each call. What is changed here is seen by the next fill; see
  // PageTable::discard_all().
  [[nodiscard]] at::Tensor& values(std::size_t parameter) { return values_[parameter]; }

 private:
  UnitLayout layout_;
  std::vector<at::Tensor> values_;
};

}  // namespace accel::pager
