#include "libaccel/engine/recompute/outside_memory.h"

#include <algorithm>
#include <array>
#include <memory>
#include <string_view>
#include <unordered_set>

#include <ATen/core/grad_mode.h>
#include <ATen/core/stack.h>
#include <ATen/ops/clone.h>
#include <torch/csrc/autograd/edge.h>
#include <torch/csrc/autograd/functions/basic_ops.h>
#include <torch/csrc/autograd/variable.h>

#include "libaccel/interception/stack_tensors.h"

namespace accel::recompute {
namespace {

const c10::StorageImpl* memory_key_of(const at::Tensor& tensor) {
  return tensor.storage().unsafeGetStorageImpl();
}

at::Tensor copy_of_storage(const at::Tensor& tensor) {
  const at::NoGradGuard no_grad;
  at::Tensor bytes = at::detail::make_tensor<c10::TensorImpl>(
      c10::Storage(tensor.storage()), tensor.key_set(), caffe2::TypeMeta::Make<std::uint8_t>());
  bytes.unsafeGetTensorImpl()->set_sizes_contiguous(
      {static_cast<std::int64_t>(tensor.storage().nbytes())});
  return bytes.clone();
}

// A tensor object of its own, in that memory.
at::Tensor in_storage(const at::Tensor& like, const c10::Storage& storage) {
  at::Tensor tensor =
      at::detail::make_tensor<c10::TensorImpl>(c10::Storage(storage), like.key_set(), like.dtype());
  tensor.unsafeGetTensorImpl()->set_sizes_and_strides(
      like.sizes(), like.strides(), like.storage_offset());
  return tensor;
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

// visit(tensor, argument) for the tensors among the arguments, which it may replace.
template <typename Visit>
void replace_tensors(const c10::OperatorHandle& op, torch::jit::Stack& stack, const Visit& visit) {
  const std::size_t num_arguments = op.schema().arguments().size();
  const std::size_t begin = stack.size() - num_arguments;
  std::vector<std::pair<interception::TensorPlace, at::Tensor>> others;
  interception::for_each_tensor(
      torch::jit::last(stack, num_arguments),
      [&](const interception::TensorPlace& place, const at::Tensor& tensor) {
        at::Tensor other = visit(tensor, place.position);
        if (!other.is_same(tensor)) others.emplace_back(place, std::move(other));
      });
  for (auto& other : others) {
    other.first.position += begin;
    c10::IValue& value = stack[other.first.position];
    if (other.first.item >= 0) value = value.toList().copy();  // others may hold the list
    interception::put_tensor(stack, other.first, other.second);
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

bool writes(const c10::OperatorHandle& op, std::size_t argument) {
  const auto* const alias = op.schema().arguments()[argument].alias_info();
  return (alias != nullptr && alias->isWrite()) || writes_unsaid(op, argument);
}

bool has_bytes(const at::Tensor& tensor) {
  return tensor.defined() && tensor.has_storage() && tensor.storage().nbytes() > 0 &&
         !tensor.is_meta();
}

GraphRole graph_role_of(const at::Tensor& tensor) {
  if (!tensor.requires_grad()) return GraphRole::kNone;
  return tensor.is_leaf() ? GraphRole::kLeaf : GraphRole::kInner;
}

void give_role(const at::Tensor& tensor, GraphRole role) {
  if (role == GraphRole::kLeaf) tensor.set_requires_grad(true);
  if (role != GraphRole::kInner) return;
  torch::autograd::impl::set_gradient_edge(
      tensor, torch::autograd::Edge(std::make_shared<torch::autograd::Identity>(), 0));
}

void OutsideMemory::keep(const at::Tensor& tensor) {
  if (kept_.contains(memory_key_of(tensor))) return;
  kept_.emplace(memory_key_of(tensor), Kept{tensor.storage(), copy_of_storage(tensor)});
}

bool OutsideMemory::has(const at::Tensor& tensor) const {
  return has_bytes(tensor) && kept_.contains(memory_key_of(tensor));
}

at::Tensor OutsideCopies::in_place_of(const at::Tensor& tensor) {
  if (!has_bytes(tensor)) return {};
  const auto kept = outside_.kept_.find(memory_key_of(tensor));
  if (kept == outside_.kept_.end()) return {};
  const auto [copy, is_new] = copies_.try_emplace(memory_key_of(tensor));
  if (is_new) copy->second = kept->second.values.clone().storage();
  return in_storage(tensor, copy->second);
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
  interception::for_each_tensor(arguments, [&given](const auto&, const at::Tensor& tensor) {
    if (has_bytes(tensor)) given.insert(memory_key_of(tensor));
  });
  interception::for_each_tensor(results, [&](const auto&, const at::Tensor& tensor) {
    if (has_bytes(tensor) && !given.contains(memory_key_of(tensor))) add(tensor);
  });
}

bool FirstRun::run(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  replace_tensors(op, *stack, [&](const at::Tensor& tensor, std::size_t argument) {
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
  at::Tensor own = copies_.in_place_of(tensor);
  if (!own.defined() && is_written) written_now_.keep(tensor);
  if (!own.defined()) own = copies_now_.in_place_of(tensor);
  if (!own.defined()) return tensor;
  give_role(own, graph_role_of(tensor));
  inside_.add(own);
  replacements_.emplace(tensor.unsafeGetTensorImpl(), Replacement{tensor, own});
  return own;
}

bool LaterRun::run(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  replace_tensors(op, *stack, [&](const at::Tensor& tensor, std::size_t argument) {
    return replaced(tensor, writes(op, argument));
  });
  call(op, stack, next_, inside_);
  return true;
}

}  // namespace accel::recompute
