#include "libaccel/engine/recompute/kept_results.h"

#include <string>

#include <ATen/core/stack.h>

#include <accel/error.h>

#include "libaccel/engine/recompute/outside_memory.h"
#include "libaccel/interception/recomputed_tensors.h"
#include "libaccel/interception/stack_tensors.h"

namespace accel::recompute {
namespace {

using interception::TensorPlace;

// Without a place in a graph. Writes to either count for both.
at::Tensor other_tensor_on_it(const at::Tensor& tensor) {
  const c10::TensorImpl& impl = *tensor.unsafeGetTensorImpl();
  return at::Tensor(impl.shallow_copy_and_detach(impl.version_counter(),
                                                 /*allow_tensor_metadata_change=*/true));
}

std::vector<c10::IValue> with_other_tensors(c10::ArrayRef<c10::IValue> values) {
  std::vector<c10::IValue> others = interception::with_own_lists(values.vec());
  interception::for_each_tensor(values, [&](const TensorPlace& place, const at::Tensor& tensor) {
    interception::put_tensor(others, place, other_tensor_on_it(tensor));
  });
  return others;
}

std::vector<c10::IValue> with_copies(c10::ArrayRef<c10::IValue> values) {
  std::vector<c10::IValue> copies = interception::with_own_lists(values.vec());
  interception::for_each_tensor(values, [&](const TensorPlace& place, const at::Tensor& tensor) {
    interception::put_tensor(copies, place, tensor.clone());
  });
  return copies;
}

std::vector<std::uint32_t> versions_of(c10::ArrayRef<c10::IValue> values) {
  std::vector<std::uint32_t> versions;
  interception::for_each_tensor(values, [&](const TensorPlace&, const at::Tensor& tensor) {
    versions.push_back(interception::write_version_of(tensor));
  });
  return versions;
}

class Flag {
 public:
  explicit Flag(bool& flag) : flag_(flag) { flag_ = true; }
  ~Flag() { flag_ = false; }
  Flag(const Flag&) = delete;
  Flag& operator=(const Flag&) = delete;

 private:
  bool& flag_;
};

void run_in_full(const c10::OperatorHandle& op,
                 c10::DispatchKeySet keys,
                 torch::jit::Stack* stack,
                 interception::KernelHandler* next,
                 bool& is_inside) {
  const Flag inside(is_inside);
  if (next == nullptr || !next->run(op, keys, stack)) interception::run_kernel(op, keys, stack);
}

}  // namespace

void KeptResults::copy(const c10::StorageImpl* storage, Result& result) {
  const Flag own(is_in_kept_);  // the copy is no operator of the region
  std::vector<c10::IValue> values = interception::with_own_lists(result.values);
  interception::for_each_tensor(
      result.values, [&](const TensorPlace& place, const at::Tensor& tensor) {
        if (has_bytes(tensor) && tensor.storage().unsafeGetStorageImpl() == storage)
          interception::put_tensor(values, place, tensor.clone());
      });
  result.values = std::move(values);
  result.versions = versions_of(result.values);
  result.is_copied = true;
}

void KeptResults::copy_before_writes(const c10::OperatorHandle& op,
                                     c10::ArrayRef<c10::IValue> arguments) {
  if (owners_.empty()) return;
  interception::for_each_tensor(arguments, [&](const TensorPlace& place, const at::Tensor& tensor) {
    if (!has_bytes(tensor) || !writes(op, place.position)) return;
    const c10::StorageImpl* const storage = tensor.storage().unsafeGetStorageImpl();
    const auto found = owners_.find(storage);
    if (found == owners_.end()) return;
    copy(storage, results_[found->second]);
    owners_.erase(found);
  });
}

bool KeptResults::is_as_it_was(const Result& result) {
  return versions_of(result.values) == result.versions;
}

bool KeptResults::keep(const c10::OperatorHandle& op,
                       c10::DispatchKeySet keys,
                       torch::jit::Stack* stack,
                       interception::KernelHandler* next) {
  if (is_in_kept_ || !operators_.contains(op)) {
    if (!is_in_kept_)
      copy_before_writes(op, torch::jit::last(*stack, op.schema().arguments().size()));
    return next != nullptr && next->run(op, keys, stack);
  }
  run_in_full(op, keys, stack, next, is_in_kept_);
  const auto given = torch::jit::last(*stack, op.schema().returns().size());
  Result result{&op.schema(), with_other_tensors(given), versions_of(given), false, std::nullopt};
  if (draws(op)) result.generators.emplace();
  interception::for_each_tensor(result.values, [&](const auto&, const at::Tensor& tensor) {
    if (has_bytes(tensor))
      owners_.emplace(tensor.storage().unsafeGetStorageImpl(), results_.size());
  });
  results_.push_back(std::move(result));
  return true;
}

bool LaterKernels::run(const c10::OperatorHandle& op,
                       c10::DispatchKeySet keys,
                       torch::jit::Stack* stack) {
  if (is_in_kept_ || !results_.operators_.contains(op))
    return next_ != nullptr && next_->run(op, keys, stack);
  if (position_ >= results_.results_.size() || results_.results_[position_].op != &op.schema()) {
    throw Error(ErrorCode::kShapeMismatch,
                "a region whose activations are computed again ran " + op.operator_name().name +
                    " as number " + std::to_string(position_) +
                    " of the operators whose results are kept, and another one in forward",
                interception::kSameAgain);
  }
  const KeptResults::Result& result = results_.results_[position_++];
  if (!KeptResults::is_as_it_was(result)) {
    run_in_full(op, keys, stack, next_, is_in_kept_);
    return true;
  }
  torch::jit::drop(*stack, op.schema().arguments().size());
  const Flag own(is_in_kept_);
  for (c10::IValue& value :
       result.is_copied ? with_copies(result.values) : with_other_tensors(result.values))
    stack->push_back(std::move(value));
  if (result.generators) result.generators->restore();
  return true;
}

}  // namespace accel::recompute
