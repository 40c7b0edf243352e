#include "libaccel/engine/gradients/divided_gradients.h"

#include <string>
#include <utility>

#include <c10/core/Storage.h>
#include <c10/core/StorageImpl.h>
#include <c10/core/TensorImpl.h>

namespace accel::sharding {
namespace {

// Its class is what a stand-in is known by.
class MissingMemory final : public c10::StorageImpl {
 public:
  MissingMemory(std::size_t bytes, std::string why)
      : c10::StorageImpl(c10::StorageImpl::use_byte_size_t(),
                         c10::SymInt(static_cast<std::int64_t>(bytes)),
                         at::DataPtr(nullptr, at::kCPU),
                         /*allocator=*/nullptr,
                         /*resizable=*/false) {
    release_data_and_set_meta_custom_data_ptr_error_msg_(std::move(why));
  }
};

std::string why_missing(const std::string& name) {
  return "the gradient of " + name +
         " is divided over the ranks, which have a part each, in the groups of the prepared "
         "optimizer: call accelerator.clip_grad_norm_(model->parameters(), max_norm) in place of "
         "torch::nn::utils::clip_grad_norm_, accelerator.clip_grad_value_ likewise, zero_grad() of "
         "the prepared optimizer in place of the module's zero_grad(false), and step() of no other "
         "optimizer";
}

at::Tensor make_stand_in(const NamedParameter& parameter) {
  const at::Tensor& values = parameter.tensor;
  c10::Storage storage(
      c10::make_intrusive<MissingMemory>(values.nbytes(), why_missing(parameter.name)));
  at::Tensor tensor = at::detail::make_tensor<c10::TensorImpl>(
      std::move(storage), c10::DispatchKeySet(c10::DispatchKey::CPU), values.dtype());
  tensor.unsafeGetTensorImpl()->set_sizes_and_strides(values.sizes(), values.strides());
  return tensor;
}

}  // namespace

bool is_stand_in(const at::Tensor& gradient) {
  return gradient.defined() && gradient.has_storage() &&
         dynamic_cast<const MissingMemory*>(gradient.storage().unsafeGetStorageImpl()) != nullptr;
}

DividedGradients::DividedGradients(std::vector<NamedParameter> parameters,
                                   std::function<void(std::size_t)> on_cleared)
    : parameters_(std::move(parameters)),
      on_cleared_(std::move(on_cleared)),
      stand_ins_(parameters_.size()),
      states_(parameters_.size(), State::kAway) {
  for (const NamedParameter& parameter : parameters_)
    hooks_.push_back(
        interception::before_adding(parameter.tensor, [this](const at::Tensor&) { withdraw(); }));
}

DividedGradients::~DividedGradients() {
  for (const NamedParameter& parameter : parameters_)
    if (is_stand_in(parameter.tensor.grad())) parameter.tensor.mutable_grad().reset();
}

void DividedGradients::put(std::size_t parameter) {
  at::Tensor& stand_in = stand_ins_[parameter];
  if (!stand_in.defined()) stand_in = make_stand_in(parameters_[parameter]);
  parameters_[parameter].tensor.mutable_grad() = stand_in;
  if (std::exchange(states_[parameter], State::kInPlace) != State::kInPlace) ++num_in_place_;
}

void DividedGradients::settle() {
  if (num_in_place_ == 0) return;
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    if (states_[i] != State::kInPlace || is_stand_in(parameters_[i].tensor.grad())) continue;
    forget(i);
    on_cleared_(i);
  }
}

void DividedGradients::withdraw() {
  settle();
  if (num_in_place_ == 0) return;
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    if (states_[i] != State::kInPlace) continue;
    parameters_[i].tensor.mutable_grad().reset();
    states_[i] = State::kWithdrawn;
  }
  num_in_place_ = 0;
}

void DividedGradients::put_back() {
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    if (states_[i] == State::kWithdrawn && !parameters_[i].tensor.grad().defined()) put(i);
  }
}

void DividedGradients::forget(std::size_t parameter) {
  if (std::exchange(states_[parameter], State::kAway) == State::kInPlace) --num_in_place_;
}

}  // namespace accel::sharding
