// PagedStorage: puts a parameter of an unmodified module on pages, so that each operator that touches it has them filled.
//
// The parameter has the key of interception/parameter_operators.h. The parameter's tensor object stays the same for ever; its
// storage is given once, at the addresses of its unit. Before an operator on it, or on a view of it, its unit is pinned until the
// operator is over, and noted as written to where the operator writes.
//
// A parameter that is always in memory has the key where its writes are to be seen: guarded(). An operator that writes then
// asks the permit (write_permit.h), and throws with the parameter's name where it may not.
//
// Threads:  any.
// Cost:     one atomic addition and subtraction an operator, beside that of the key (`bench/run pager`).
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "libaccel/engine/pager/guard_memory.h"
#include "libaccel/engine/pager/page_table.h"
#include "libaccel/engine/pager/write_permit.h"
#include "libaccel/interception/parameter_operators.h"

namespace accel::pager {

// Where a storage lies. Freed with it.
struct PagedStorage final : interception::ParameterStorage {
  PagedStorage(std::shared_ptr<PageTable> pages, std::size_t index);
  void before(interception::OperatorRun& run,
              const c10::TensorImpl& tensor,
              bool is_written) const override;
  [[nodiscard]] std::string name_of(const c10::TensorImpl& tensor) const override;

  const std::shared_ptr<PageTable> table;  // shared with the pager: views may outlive it
  const std::size_t parameter;
  const SlotPlace place;
};

// A storage over the addresses of the parameter.
[[nodiscard]] at::Storage make_paged_storage(std::shared_ptr<PageTable> table,
                                             std::size_t parameter);

// Gives the tensor the key, the storage, and dtype; sizes and strides stay as they are.
void put_on_pages(at::Tensor& tensor,
                  const at::Storage& storage,
                  at::ScalarType dtype,
                  std::int64_t storage_offset);

// Moves a storage that is on pages to those of another table; tensors and views over it follow.
void move_to_pages(const at::Tensor& tensor,
                   std::shared_ptr<PageTable> table,
                   std::size_t parameter);

// Gives it ordinary memory again. values: without the key, of the tensor's sizes.
void take_off_pages(at::Tensor& tensor, const at::Tensor& values);

// A tensor of the same values, in the same memory, which operators write to only with the permit; views of it too. labels: the
// parameters in the storage of `values`, by their bytes there.
[[nodiscard]] at::Tensor guarded(const at::Tensor& values,
                                 std::vector<GuardLabel> labels,
                                 std::shared_ptr<const WritePermit> permit);

// Where the tensor (or the view) lies; nullptr when it is not paged.
[[nodiscard]] const PagedStorage* paged_storage(const at::Tensor& tensor) noexcept;

// The tensor, or a copy of one that is paged: for code that takes its address.
[[nodiscard]] at::Tensor with_memory(const at::Tensor& tensor);

}  // namespace accel::pager
