// OutsideMemory: what a region of a forward writes to and has not made itself: statistics of batch norm, counters, caches.
//
// Such memory is written to once, by the forward. Its values of before are kept; when the region runs again, it reads and writes
// copies of them, and the memory itself stays as it is. So running statistics are not averaged twice, and a region that
// reads what it writes computes the same.
//
// Seen are operators. Memory that comes to the region without one (from_blob) counts as outside.
//
// Threads:  one at a time.
// Cost:     boxing of the region's operators, and an entry for each tensor that they make; a copy of the memory that is written to.
#pragma once

#include <cstdint>
#include <unordered_map>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/Storage.h>

#include "libaccel/interception/whole_operators.h"

namespace accel::recompute {

// What a tensor is to autograd.
enum class GraphRole {
  kNone,
  kLeaf,   // requires a gradient
  kInner,  // the result of a node: it may be written to
};
[[nodiscard]] GraphRole graph_role_of(const at::Tensor& tensor);
// The same to autograd, but that it leads to no graph.
void give_role(const at::Tensor& tensor, GraphRole role);
// Whether the operator writes to this argument; normalisations do not say so of their running statistics.
[[nodiscard]] bool writes(const c10::OperatorHandle& op, std::size_t argument);
// Whether it has memory that could be written to.
[[nodiscard]] bool has_bytes(const at::Tensor& tensor);

// Values of before, by storage. A storage is held as long as its entry, so that no other gets its address.
class OutsideMemory {
 public:
  // Keeps the values of the tensor's whole storage, when it has none yet.
  void keep(const at::Tensor& tensor);
  [[nodiscard]] bool has(const at::Tensor& tensor) const;

 private:
  friend class OutsideCopies;
  struct Kept {
    c10::Storage storage;
    at::Tensor values;  // its bytes
  };
  std::unordered_map<const c10::StorageImpl*, Kept> kept_;
};

// Memory with those values, for one run of the region.
class OutsideCopies {
 public:
  explicit OutsideCopies(const OutsideMemory& outside) : outside_(outside) {}
  // In the memory in place of the tensor's own: for tensors of one storage the same. Without a role in a graph. Undefined: the
  // region has not written to it.
  [[nodiscard]] at::Tensor in_place_of(const at::Tensor& tensor);

 private:
  const OutsideMemory& outside_;
  std::unordered_map<const c10::StorageImpl*, c10::Storage> copies_;
};

// Storages that the operators of a region have made.
class InsideMemory {
 public:
  // Of an operator that has run: what is in the memory of none of its arguments was made by it.
  void add_made(const std::vector<c10::IValue>& arguments, c10::ArrayRef<c10::IValue> results);
  void add(const at::Tensor& tensor);
  [[nodiscard]] bool contains(const at::Tensor& tensor) const;

 private:
  std::unordered_map<const c10::StorageImpl*, c10::weak_intrusive_ptr<c10::StorageImpl>> storages_;
};

// Keeps what the operators of the first run write to outside.
class FirstRun final : public interception::OperatorHandler {
 public:
  explicit FirstRun(OutsideMemory& outside) : outside_(outside) {}
  void set_next(interception::OperatorHandler* next) noexcept { next_ = next; }
  bool run(const c10::OperatorHandle& op, torch::jit::Stack* stack) override;

 private:
  OutsideMemory& outside_;
  InsideMemory inside_;
  interception::OperatorHandler* next_ = nullptr;
};

// Gives the operators of a later run copies of it.
class LaterRun final : public interception::OperatorHandler {
 public:
  explicit LaterRun(const OutsideMemory& outside) : copies_(outside) {}
  void set_next(interception::OperatorHandler* next) noexcept { next_ = next; }
  bool run(const c10::OperatorHandle& op, torch::jit::Stack* stack) override;

 private:
  // The tensor to use in place of one; itself where it is not written to outside.
  [[nodiscard]] at::Tensor replaced(const at::Tensor& tensor, bool is_written);

  OutsideCopies copies_;
  InsideMemory inside_;
  struct Replacement {
    at::Tensor original;  // held: no other tensor gets its address
    at::Tensor tensor;
  };
  std::unordered_map<const c10::TensorImpl*, Replacement> replacements_;
  OutsideMemory written_now_;  // in this run and not in the first
  OutsideCopies copies_now_{written_now_};
  interception::OperatorHandler* next_ = nullptr;
};

}  // namespace accel::recompute
