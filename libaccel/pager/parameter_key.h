// ParameterKey: how the pager sees every operator that touches a parameter of an unmodified module.
//
// A paged parameter has LibTorch's dispatch key Fake, which is free for libraries, lies below autograd and above the
// kernels, and is inherited by views. So a fallback on that key is called for each operator on the parameter or a view
// of it, in forward and in backward, and for no other operator. It pins the units that the operator's arguments lie in,
// notes which of them the operator writes to (its schema says so), and goes on to the kernel.
//
// The parameter's tensor object stays the same for ever; its storage is given once, at the addresses of its unit. From
// the storage (the context of its data pointer) the fallback finds unit and table without a search.
//
// A parameter that is always in memory has the key where its writes are to be seen: guarded(). An operator that writes then
// asks the permit (write_permit.h), and throws with the parameter's name where it may not.
//
// Operators that only look at sizes, or make views, skip the key: they neither need values nor pay. Those that would
// give the parameter other memory (resize_, set_) are refused with kUnsupported and the parameter's name. What is no operator,
// or says in its schema that it does not write, is not seen: set_data(), kernels by an address, c10d's collectives.
//
// This file and its test are the only places that know of the key; another LibTorch is tried against that test.
//
// Threads:  any.
// Cost:     boxing and one atomic addition and subtraction an operator (`bench/run pager`).
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include <ATen/core/Tensor.h>

#include "libaccel/pager/guard_memory.h"
#include "libaccel/pager/page_table.h"
#include "libaccel/pager/write_permit.h"

namespace accel::pager {

// Where a storage lies. Freed with it.
struct PagedStorage {
  std::shared_ptr<PageTable> table;  // shared with the pager: views may outlive it
  std::size_t parameter = 0;
  SlotPlace place;
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

// How often the fallback ran in this process.
[[nodiscard]] std::uint64_t num_hooked_operators() noexcept;

}  // namespace accel::pager
