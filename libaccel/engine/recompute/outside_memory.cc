#include "libaccel/engine/recompute/outside_memory.h"

#include <algorithm>
#include <array>
#include <string_view>
#include <unordered_set>

#include <ATen/core/grad_mode.h>
#include <ATen/core/stack.h>
#include <ATen/ops/clone.h>

namespace accel::recompute {
namespace {

bool has_bytes(const at::Tensor& tensor) {
  return tensor.defined() && tensor.has_storage() && tensor.storage().nbytes() > 0 &&
         !tensor.is_meta();
}

const c10::StorageImpl* memory_key_of(const at::Tensor& tensor) {
  return tensor.storage().unsafeGetStorageImpl();
}

// A tensor object of its own, in that memory.
at::Tensor in_storage(const at::Tensor& like, const c10::Storage& storage) {
  at::Tensor tensor =
      at::detail::make_tensor<c10::TensorImpl>(c10::Storage(storage), like.key_set(), like.dtype());
  tensor.unsafeGetTensorImpl()->set_sizes_and_strides(
      like.sizes(), like.strides(), like.storage_offset());
  return tensor;
}

at::Tensor copy_of_storage(const at::Tensor& tensor) {
  const at::NoGradGuard no_grad;
  at::Tensor bytes = at::detail::make_tensor<c10::TensorImpl>(
      c10::Storage(tensor.storage()), tensor.key_set(), caffe2::TypeMeta::Make<std::uint8_t>());
  bytes.unsafeGetTensorImpl()->set_sizes_contiguous(
      {static_cast<std::int64_t>(tensor.storage().nbytes())});
  return bytes.clone();
}

// Normalisations write to their running statistics, and do not say so.
bool writes_unsaid(const c10::OperatorHandle& op, std::size_t argument) {
  static constexpr std::array<std::string_view, 5> kNormalisations = {"aten::batch_norm",
                                                                      "aten::native_batch_norm",
                                                                      "aten::cudnn_batch_norm",
                                                                      "aten::miopen_batch_norm",
                                                                      "aten::instance_norm"};
  const std::string_view name = op.schema().arguments()[argument].name();
  return (name == "running_mean" || name == "running_var") &&
         std::find(kNormalisations.begin(),
                   kNormalisations.end(),
                   std::string_view(op.operator_name().name)) != kNormalisations.end();
}

bool writes(const c10::OperatorHandle& op, std::size_t argument) {
  const auto* const alias = op.schema().arguments()[argument].alias_info();
  return (alias != nullptr && alias->isWrite()) || writes_unsaid(op, argument);
}

// visit(tensor, argument) for the tensors among the values and in lists of them, which it may replace.
template <typename Visit>
void replace_tensors(c10::ArrayRef<c10::IValue> values, const Visit& visit) {
  for (std::size_t i = 0; i < values.size(); ++i) {
    auto& value = const_cast<c10::IValue&>(values[i]);  // NOLINT: the stack is the caller's own
    if (value.isTensor() && value.toTensor().defined()) {
      at::Tensor tensor = visit(value.toTensor(), i);
      if (!tensor.is_same(value.toTensor())) value = std::move(tensor);
    } else if (value.isTensorList() || value.isOptionalTensorList()) {
      // Others may hold the list.
      const c10::List<c10::IValue> own = value.toList().copy();
      bool is_other = false;
      for (std::size_t k = 0; k < own.size(); ++k) {
        const c10::IValue item = own.get(k);
        if (!item.isTensor() || !item.toTensor().defined()) continue;
        at::Tensor tensor = visit(item.toTensor(), i);
        if (tensor.is_same(item.toTensor())) continue;
        own.set(k, std::move(tensor));
        is_other = true;
      }
      if (is_other) value = own;
    }
  }
}

template <typename Visit>
void for_each_tensor_of(c10::ArrayRef<c10::IValue> values, const Visit& visit) {
  for (const c10::IValue& value : values) {
    if (value.isTensor() && value.toTensor().defined()) visit(value.toTensor());
    if (!value.isTensorList() && !value.isOptionalTensorList()) continue;
    for (const c10::IValue& item : value.toListRef()) {
      if (item.isTensor() && item.toTensor().defined()) visit(item.toTensor());
    }
  }
}

void call(const c10::OperatorHandle& op,
          torch::jit::Stack* stack,
          interception::OperatorHandler* next,
          InsideMemory& inside) {
  const std::size_t num_arguments = op.schema().arguments().size();
  const auto given = torch::jit::last(*stack, num_arguments);
  const std::vector<c10::IValue> arguments(given.begin(), given.end());
  if (next == nullptr || !next->run(op, stack)) op.callBoxed(stack);
  inside.add_made(arguments, torch::jit::last(*stack, op.schema().returns().size()));
}

}  // namespace

void OutsideMemory::keep(const at::Tensor& tensor) {
  if (kept_.contains(memory_key_of(tensor))) return;
  kept_.emplace(memory_key_of(tensor), Kept{tensor.storage(), copy_of_storage(tensor)});
}

const at::Tensor* OutsideMemory::values_of(const at::Tensor& tensor) const {
  const auto found = kept_.find(memory_key_of(tensor));
  return found == kept_.end() ? nullptr : &found->second.values;
}

void InsideMemory::add(const at::Tensor& tensor) {
  storages_.emplace(memory_key_of(tensor), tensor.storage().getWeakStorageImpl());
}

bool InsideMemory::contains(const at::Tensor& tensor) const {
  return storages_.contains(memory_key_of(tensor));
}

void InsideMemory::add_made(const std::vector<c10::IValue>& arguments,
                            c10::ArrayRef<c10::IValue> results) {
  std::unordered_set<const c10::StorageImpl*> given;
  for_each_tensor_of(arguments, [&given](const at::Tensor& tensor) {
    if (has_bytes(tensor)) given.insert(memory_key_of(tensor));
  });
  for_each_tensor_of(results, [&](const at::Tensor& tensor) {
    if (has_bytes(tensor) && !given.contains(memory_key_of(tensor))) add(tensor);
  });
}

bool FirstRun::run(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  replace_tensors(torch::jit::last(*stack, op.schema().arguments().size()),
                  [&](const at::Tensor& tensor, std::size_t argument) {
                    if (has_bytes(tensor) && writes(op, argument) && !inside_.contains(tensor))
                      outside_.keep(tensor);
                    return tensor;
                  });
  call(op, stack, next_, inside_);
  return true;
}

at::Tensor LaterRun::replaced(const at::Tensor& tensor, bool is_written) {
  if (!has_bytes(tensor) || inside_.contains(tensor)) return tensor;
  const auto known = replacements_.find(tensor.unsafeGetTensorImpl());
  if (known != replacements_.end()) return known->second.tensor;
  const at::Tensor* values = outside_.values_of(tensor);
  if (values == nullptr && is_written) written_now_.keep(tensor);
  if (values == nullptr) values = written_now_.values_of(tensor);
  if (values == nullptr) return tensor;
  const auto [copy, is_new] = copies_.try_emplace(memory_key_of(tensor));
  if (is_new) copy->second = values->clone().storage();
  at::Tensor own = in_storage(tensor, copy->second);
  own.set_requires_grad(tensor.requires_grad());
  inside_.add(own);
  replacements_.emplace(tensor.unsafeGetTensorImpl(), Replacement{tensor, own});
  return own;
}

bool LaterRun::run(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  replace_tensors(torch::jit::last(*stack, op.schema().arguments().size()),
                  [&](const at::Tensor& tensor, std::size_t argument) {
                    return replaced(tensor, writes(op, argument));
                  });
  call(op, stack, next_, inside_);
  return true;
}

}  // namespace accel::recompute
