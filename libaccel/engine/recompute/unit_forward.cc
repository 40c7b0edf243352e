#include "libaccel/engine/recompute/unit_forward.h"

#include <utility>

#include <ATen/core/stack.h>

namespace accel::recompute {

using interception::TensorPlace;

UnitForward::UnitForward(std::shared_ptr<const UnitOfParameter> units,
                         Comparison comparison,
                         std::optional<KeptOperators> keep)
    : units_(std::move(units)),
      comparison_(comparison),
      keep_(std::move(keep)),
      saved_([this] {
        auto* const tensors = part_ == nullptr ? nullptr : part_->saved_now();
        return tensors == nullptr ? nullptr : tensors->make_hooks();
      }),
      handler_(*this) {
  if (keep_) kernels_.emplace(*this);
}

bool UnitForward::Kernels::run(const c10::OperatorHandle& op,
                               c10::DispatchKeySet keys,
                               torch::jit::Stack* stack) {
  KeptResults* const kept = forward_.part_ == nullptr ? nullptr : forward_.part_->kept_now();
  if (kept != nullptr) return kept->keep(op, keys, stack, scope_.outer());
  return scope_.outer() != nullptr && scope_.outer()->run(op, keys, stack);
}

void UnitForward::begin_part_of(c10::ArrayRef<c10::IValue> arguments) {
  const int* unit = nullptr;
  interception::for_each_tensor(arguments, [&](const TensorPlace&, const at::Tensor& tensor) {
    if (unit != nullptr) return;
    const auto found = units_->find(tensor.unsafeGetTensorImpl());
    if (found != units_->end()) unit = &found->second;
  });
  if (unit == nullptr || *unit == unit_) return;
  unit_ = *unit;
  part_ = unit_ == kNoUnit ? nullptr
                           : std::make_unique<UnitRecorder>(comparison_, keep_ ? &*keep_ : nullptr);
}

// What a part holds may be written to by operators behind it.
void UnitForward::keep_for_tapes(const c10::OperatorHandle& op,
                                 c10::ArrayRef<c10::IValue> arguments) {
  interception::for_each_tensor(arguments, [&](const TensorPlace& place, const at::Tensor& tensor) {
    if (!has_bytes(tensor) || !writes(op, place.position)) return;
    const auto found = holders_.find(tensor.storage().unsafeGetStorageImpl());
    if (found == holders_.end()) return;
    for (const std::weak_ptr<UnitTape>& holder : found->second) {
      if (const auto tape = holder.lock()) tape->keep(tensor);
    }
  });
}

bool UnitForward::run(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const auto arguments = torch::jit::last(*stack, op.schema().arguments().size());
  begin_part_of(arguments);
  keep_for_tapes(op, arguments);
  if (part_ != nullptr && !part_->can_record(arguments)) part_.reset();
  if (part_ == nullptr) return handler_.outer() != nullptr && handler_.outer()->run(op, stack);
  part_->run(op, stack, handler_.outer());
  for (const c10::StorageImpl* storage : part_->take_newly_held())
    holders_[storage].push_back(part_->tape());
  return true;
}

}  // namespace accel::recompute
