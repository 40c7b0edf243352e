// ParameterOperators: how the owner of a parameter's memory sees every operator that touches it, in unmodified modules.
//
// A tensor may have LibTorch's dispatch key Fake, which is free for libraries, lies below autograd and above the kernels, and is
// inherited by views. So a fallback on that key is called for each operator on such a tensor or a view of it, in forward and
// in backward, and for no other operator. It tells the owner of the storage that each of the operator's arguments lies in, and
// whether the operator writes there (its schema says so), and goes on to the kernel. The owner is the context of the storage's
// data pointer, and found without a search. Arguments of one operator may have several owners: pages that come and go, memory
// that is written to with a permit only (engine/pager/paged_storage.h).
//
// Operators that only look at sizes, or make views, skip the key: they neither need values nor pay. Those that would
// give the parameter other memory (resize_, set_) are refused with kUnsupported and the parameter's name. What is no operator,
// or says in its schema that it does not write, is not seen: set_data(), kernels by an address, c10d's collectives.
//
// On a thread with a KernelScope (kernel_scope.h) the fallback asks that one in place of the owners.
//
// Another LibTorch is tried against tests/unit/libaccel/pager/paged_storage_test.cc.
//
// Threads:  any.
// Cost:     boxing, and what the owner does (`bench/run pager`). While no tensor has the key: none.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/util/SmallVector.h>

namespace accel::interception {

// One operator, while it runs.
class OperatorRun {
 public:
  // Something that an owner keeps in place for it.
  struct Held {
    void* owner;
    std::size_t unit;
    void (*release)(void* owner, std::size_t unit) noexcept;
  };

  // name: text that lives for ever.
  explicit OperatorRun(const char* name) noexcept;
  OperatorRun(const OperatorRun&) = delete;
  OperatorRun& operator=(const OperatorRun&) = delete;
  ~OperatorRun() {
    for (const Held& held : held_) held.release(held.owner, held.unit);
  }

  [[nodiscard]] const char* name() const noexcept { return name_; }
  [[nodiscard]] std::span<const Held> held() const noexcept { return {held_.data(), held_.size()}; }
  // Until the operator is over.
  void hold(const Held& held) { held_.push_back(held); }

 private:
  const char* name_;
  c10::SmallVector<Held, 8> held_;
};

// The owner of a storage.
class ParameterStorage {
 public:
  ParameterStorage() = default;
  virtual ~ParameterStorage() = default;
  ParameterStorage(const ParameterStorage&) = delete;
  ParameterStorage& operator=(const ParameterStorage&) = delete;

  // Before an operator reads or writes the tensor, which lies in this storage. What it throws, the operator throws.
  virtual void before(OperatorRun& run, const c10::TensorImpl& tensor, bool is_written) const = 0;
  // Of the parameter at the tensor's first element.
  [[nodiscard]] virtual std::string name_of(const c10::TensorImpl& tensor) const = 0;
  // Keeps the storage's memory in place for as long as the result lives; nullptr: it always is.
  [[nodiscard]] virtual std::shared_ptr<void> hold() const { return nullptr; }
};

// Registers the fallback, once. make_owned() and KernelScope call it.
void hook_operators_below_autograd();

// For a storage at that address of the device.
[[nodiscard]] at::DataPtr owned_pointer(void* address,
                                        std::unique_ptr<ParameterStorage> owner,
                                        c10::Device device = c10::kCPU);
// Gives a storage that has such a pointer another address, and leaves it its owner. nullptr: it has no memory for now, and code that
// takes the address of a tensor in it gets a c10::Error. Requires: no operator works on it.
void move_owned(c10::StorageImpl& storage, void* address);

// A tensor of like's keys, sizes and strides, with the key, whose storage has such a pointer.
[[nodiscard]] at::Tensor make_owned(const at::Tensor& like,
                                    at::Storage storage,
                                    at::ScalarType dtype,
                                    std::int64_t storage_offset);

// nullptr: nobody owns the tensor's storage, or it has not the key.
[[nodiscard]] const ParameterStorage* owner_of(const c10::TensorImpl& tensor) noexcept;

// The operator that this thread runs, or ran last, of those that were seen; nullptr: none. For handlers of signals, too.
[[nodiscard]] const char* last_operator() noexcept;

// How many were seen on this thread.
[[nodiscard]] std::uint64_t num_hooked_operators() noexcept;

}  // namespace accel::interception
