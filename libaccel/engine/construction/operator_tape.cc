#include "libaccel/engine/construction/operator_tape.h"

#include <algorithm>
#include <utility>

#include <ATen/core/grad_mode.h>
#include <ATen/core/stack.h>

#include "libaccel/engine/construction/tensor_memory.h"

namespace accel::construction {

using interception::for_each_tensor;
using interception::get_tensor;
using interception::put_tensor;
using interception::TensorPlace;
using interception::with_own_lists;

const OperatorTape::Value* OperatorTape::find(const at::Tensor& tensor) const {
  const auto found = index_.find(tensor.unsafeGetTensorImpl());
  return found == index_.end() ? nullptr : &values_[found->second];
}

bool OperatorTape::knows(const at::Tensor& tensor) const {
  return tensor.defined() && tensor.is_meta() && find(tensor) != nullptr;
}

std::size_t OperatorTape::value_of(const at::Tensor& tensor) {
  const auto [found, is_new] = index_.emplace(tensor.unsafeGetTensorImpl(), values_.size());
  if (is_new) {
    values_.push_back(
        {c10::weak_intrusive_ptr<c10::TensorImpl>(tensor.getIntrusivePtr()), tensor.storage()});
  }
  return found->second;
}

void OperatorTape::record(const c10::OperatorHandle& op,
                          std::vector<c10::IValue> arguments,
                          c10::ArrayRef<c10::IValue> results) {
  const at::NoGradGuard no_grad;
  Call call{op, with_own_lists(std::move(arguments)), {}, {}, {}};
  struct Ordinary {
    TensorPlace place;
    at::Tensor copy;
  };
  std::vector<Ordinary> ordinary;
  for_each_tensor(call.arguments, [&](const TensorPlace& place, const at::Tensor& tensor) {
    const auto* alias = op.schema().arguments()[place.position].alias_info();
    const bool is_written = alias != nullptr && alias->isWrite();
    if (!knows(tensor)) {
      // Until it runs again the memory may change, or go: from_blob() does not own it.
      if (!is_written) ordinary.push_back({place, tensor.clone()});
      return;
    }
    call.reads.push_back({place, value_of(tensor)});
    if (is_written) call.writes.insert(tensor.storage().unsafeGetStorageImpl());
  });
  for (const Ordinary& value : ordinary) put_tensor(call.arguments, value.place, value.copy);
  for (const Place& read : call.reads) put_tensor(call.arguments, read.place, {});
  for_each_tensor(results, [&](const TensorPlace& place, const at::Tensor& tensor) {
    if (!tensor.is_meta()) return;
    call.results.push_back({place, value_of(tensor)});
    call.writes.insert(tensor.storage().unsafeGetStorageImpl());
  });
  if (!call.writes.empty()) calls_.push_back(std::move(call));
}

// From the last call to the first: one that writes to a storage that is needed needs those that it reads.
std::vector<std::size_t> OperatorTape::calls_for(const std::vector<std::size_t>& values) const {
  std::unordered_set<const void*> needed;
  for (const std::size_t value : values)
    needed.insert(values_[value].storage.unsafeGetStorageImpl());
  std::vector<std::size_t> calls;
  for (std::size_t i = calls_.size(); i-- > 0;) {
    const Call& call = calls_[i];
    if (std::none_of(call.writes.begin(), call.writes.end(), [&](const void* storage) {
          return needed.contains(storage);
        }))
      continue;
    for (const Place& read : call.reads)
      needed.insert(values_[read.value].storage.unsafeGetStorageImpl());
    calls.push_back(i);
  }
  std::reverse(calls.begin(), calls.end());
  return calls;
}

// Those and all others that somebody holds of the same storages, which are to share memory afterwards.
std::vector<std::size_t> OperatorTape::with_views(const std::vector<std::size_t>& values) const {
  std::unordered_set<const void*> storages;
  for (const std::size_t value : values)
    storages.insert(values_[value].storage.unsafeGetStorageImpl());
  std::vector<std::size_t> all;
  for (std::size_t value = 0; value < values_.size(); ++value) {
    const auto held = values_[value].tensor.lock();
    if (held != nullptr && held->is_meta() &&
        storages.contains(values_[value].storage.unsafeGetStorageImpl()))
      all.push_back(value);
  }
  return all;
}

void OperatorTape::make_real_values(const std::vector<std::size_t>& wanted) {
  const at::NoGradGuard no_grad;
  const std::vector<std::size_t> values = with_views(wanted);
  std::unordered_map<std::size_t, at::Tensor> made;
  for (const std::size_t i : calls_for(values)) {
    const Call& call = calls_[i];
    torch::jit::Stack stack = with_own_lists(call.arguments);
    for (const Place& read : call.reads) {
      const auto present = made.find(read.value);
      if (present != made.end()) put_tensor(stack, read.place, present->second);
    }
    call.op.callBoxed(stack);
    for (const Place& result : call.results) made[result.value] = get_tensor(stack, result.place);
  }
  for (const std::size_t value : values) {
    const auto held = values_[value].tensor.lock();
    if (held == nullptr) continue;
    give_memory(at::Tensor(held), made.at(value));
  }
}

void OperatorTape::make_real(const std::vector<at::Tensor>& tensors) {
  std::vector<std::size_t> values;
  for (const at::Tensor& tensor : tensors) {
    if (knows(tensor)) values.push_back(value_of(tensor));
  }
  if (!values.empty()) make_real_values(values);
}

std::vector<at::Tensor> OperatorTape::held() const {
  std::vector<at::Tensor> tensors;
  for (const Value& value : values_) {
    auto held = value.tensor.lock();
    if (held != nullptr && held->is_meta()) tensors.emplace_back(std::move(held));
  }
  return tensors;
}

}  // namespace accel::construction
