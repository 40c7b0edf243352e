#include "libaccel/interception/recomputed_tensors.h"

#include <cstring>
#include <sstream>
#include <string>
#include <utility>

#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/graph_task.h>

#include <accel/error.h>

#include "libaccel/interception/backward_hooks.h"
#include "libaccel/interception/saved_tensors.h"

namespace accel::interception {
namespace {

std::string tensor_text(c10::IntArrayRef sizes, at::ScalarType dtype, const c10::Device& device) {
  std::ostringstream text;
  text << sizes << " " << c10::toString(dtype) << " on " << device;
  return text.str();
}

// Of the tensor's bits, whatever its strides. 0: nothing to compare.
std::uint64_t digest_of(const at::Tensor& tensor, Comparison comparison) {
  if (comparison == Comparison::kShapes || !tensor.device().is_cpu() || !tensor.has_storage() ||
      tensor.scalar_type() == at::kByte)
    return 0;
  const at::NoGradGuard no_grad;
  const at::Tensor dense = tensor.detach().contiguous();
  const auto* const bytes = static_cast<const unsigned char*>(dense.const_data_ptr());
  const std::size_t size = dense.nbytes();
  constexpr std::uint64_t kPrime = 0x100000001b3;  // FNV-1a's
  std::uint64_t digest = 0xcbf29ce484222325;
  std::size_t i = 0;
  for (; i + sizeof(std::uint64_t) <= size; i += sizeof(std::uint64_t)) {
    std::uint64_t word = 0;
    std::memcpy(&word, bytes + i, sizeof(word));
    digest = (digest ^ word) * kPrime;
    digest ^= digest >> 29;
  }
  for (; i < size; ++i) digest = (digest ^ bytes[i]) * kPrime;
  return digest;
}

c10::weak_intrusive_ptr<c10::StorageImpl> weak_storage_of(const at::Tensor& tensor) {
  if (tensor.has_storage()) return tensor.storage().getWeakStorageImpl();
  return c10::weak_intrusive_ptr<c10::StorageImpl>(c10::intrusive_ptr<c10::StorageImpl>());
}

}  // namespace

std::uint32_t write_version_of(const at::Tensor& tensor) {
  return tensor.is_inference() ? 0 : static_cast<std::uint32_t>(tensor._version());
}

// ---- of the forward ----

class RecomputedTensors::Hooks final : public torch::autograd::SavedVariableHooks {
 public:
  explicit Hooks(std::shared_ptr<RecomputedTensors> tensors) : tensors_(std::move(tensors)) {}
  ~Hooks() override {
    if (is_packed_) tensors_->drop_slot(slot_);
  }
  Hooks(const Hooks&) = delete;
  Hooks& operator=(const Hooks&) = delete;

  void call_pack_hook(const at::Tensor& tensor) override {
    slot_ = tensors_->add_slot(tensor);
    is_packed_ = true;
  }
  at::Tensor call_unpack_hook() override { return tensors_->take(slot_); }

 private:
  std::shared_ptr<RecomputedTensors> tensors_;
  std::size_t slot_ = 0;
  bool is_packed_ = false;
};

std::unique_ptr<torch::autograd::SavedVariableHooks> RecomputedTensors::make_hooks() {
  return std::make_unique<Hooks>(shared_from_this());
}

std::size_t RecomputedTensors::add_slot(const at::Tensor& tensor) {
  const std::lock_guard lock(mutex_);
  slots_.push_back({.sizes = tensor.sizes().vec(),
                    .dtype = tensor.scalar_type(),
                    .device = tensor.device(),
                    .storage = weak_storage_of(tensor),
                    .version = write_version_of(tensor),
                    .digest = digest_of(tensor, comparison_)});
  return slots_.size() - 1;
}

void RecomputedTensors::drop_slot(std::size_t slot) {
  const std::lock_guard lock(mutex_);
  slots_[slot].is_wanted = false;
  for (auto& backward : backwards_) {
    if (slot < backward.second.size()) backward.second[slot].tensor.reset();
  }
}

// ---- of the backward ----

at::Tensor RecomputedTensors::take(std::size_t slot) {
  const std::lock_guard lock(mutex_);
  const int task = torch::autograd::get_current_graph_task_id();
  Values alone(slots_.size());  // asked for outside of a backward
  Values* values = &alone;
  if (task >= 0) {
    const auto [found, is_new] = backwards_.try_emplace(task, slots_.size());
    values = &found->second;
    if (is_new) {
      const auto forget = [weak = weak_from_this(), task] {
        const auto tensors = weak.lock();
        if (tensors == nullptr) return;
        const std::lock_guard guard(tensors->mutex_);
        tensors->backwards_.erase(task);
      };
      call_at_end_of_backward(forget, forget);
    }
  }
  if (!(*values)[slot].tensor.defined()) fill(*values, slot);
  Value& value = (*values)[slot];
  value.was_used = true;
  if (write_version_of(value.tensor) != value.version) {
    throw Error(
        ErrorCode::kInvalidArgument,
        "a tensor that the backward needs, number " + std::to_string(slot) +
            " of those saved in a region whose activations are computed again, is changed in "
            "place by a later operator of the region",
        "use the operator that does not write in place, as add() for add_()");
  }
  return std::exchange(value.tensor, {});
}

void RecomputedTensors::fill(Values& values, std::size_t wanted) {
  Filling filling(*this, values, wanted);
  {
    const ForwardAgain forward;
    run_again_(filling);
  }
  if (filling.next_ >= filling.end_) return;
  throw Error(ErrorCode::kShapeMismatch,
              "a region whose activations are computed again saved " +
                  std::to_string(slots_.size()) + " tensors in forward, and " +
                  std::to_string(filling.next_) + " when it ran again",
              kSameAgain);
}

void RecomputedTensors::check(std::size_t slot, const at::Tensor& again) const {
  const Slot& saved = slots_[slot];
  if (again.sizes() != saved.sizes || again.scalar_type() != saved.dtype ||
      again.device() != saved.device) {
    throw Error(
        ErrorCode::kShapeMismatch,
        "a region whose activations are computed again saved another tensor than in forward: "
        "number " +
            std::to_string(slot) + " was " + tensor_text(saved.sizes, saved.dtype, saved.device) +
            ", and is " + tensor_text(again.sizes(), again.scalar_type(), again.device()),
        kSameAgain);
  }
  const auto present = saved.storage.lock();
  const bool is_same_memory = present != nullptr && again.has_storage() &&
                              present.get() == again.storage().unsafeGetStorageImpl();
  if (is_same_memory && write_version_of(again) != saved.version) {
    throw Error(ErrorCode::kInvalidArgument,
                "a tensor " + tensor_text(saved.sizes, saved.dtype, saved.device) +
                    " that a region reads whose activations are computed again was changed in "
                    "place since: it was at version " +
                    std::to_string(saved.version) + ", and is at version " +
                    std::to_string(write_version_of(again)),
                "write to weights and inputs after the backward, as optimizer.step() behind it");
  }
  if (digest_of(again, comparison_) == saved.digest) return;
  throw Error(ErrorCode::kUnsupported,
              "tensor number " + std::to_string(slot) + ", " +
                  tensor_text(saved.sizes, saved.dtype, saved.device) +
                  ", that a forward has saved has other values when it is computed again: the code "
                  "writes to tensors by their addresses, or does not do the same each time",
              "use operators of tensors in place of data_ptr() and accessors, or leave "
              "activation_checkpointing out");
}

class RecomputedTensors::Filling::Hooks final : public torch::autograd::SavedVariableHooks {
 public:
  explicit Hooks(Filling& filling) : filling_(&filling) {}
  void call_pack_hook(const at::Tensor& tensor) override {
    // An output of its node must not hold the node.
    const at::NoGradGuard no_grad;
    tensor_ = tensor.detach();
    filling_->take(tensor_);
  }
  // Of a backward within the region.
  at::Tensor call_unpack_hook() override { return tensor_; }

 private:
  Filling* filling_;
  at::Tensor tensor_;
};

RecomputedTensors::Filling::Filling(const RecomputedTensors& tensors,
                                    Values& values,
                                    std::size_t wanted)
    : tensors_(tensors),
      values_(values),
      wanted_(wanted),
      end_(wanted + 1),
      operator_end_(tensors.slots_.size()) {
  for (std::size_t slot = end_; slot < values.size(); ++slot) {
    if (tensors.slots_[slot].is_wanted && !values[slot].was_used) end_ = slot + 1;
  }
}

void RecomputedTensors::Filling::run(const std::function<void()>& work) {
  const SavedTensorScope scope([this] { return std::make_unique<Hooks>(*this); });
  try {
    work();
  } catch (const Filled&) {
    // Nobody needs what comes behind.
  }
}

void RecomputedTensors::Filling::begin_operator(std::size_t first, std::size_t count) {
  if (first >= end_) throw Filled{};
  next_ = first;
  operator_end_ = first + count;
}

void RecomputedTensors::Filling::end_operator(const std::string& name) const {
  if (next_ >= operator_end_) return;
  throw Error(ErrorCode::kShapeMismatch,
              name + " saved fewer tensors when activations were computed again than in forward",
              "turn activation checkpointing off for this model");
}

void RecomputedTensors::Filling::take(const at::Tensor& tensor) {
  // The region has caught what ends it; or another scope kept what the operator saved in forward.
  if (next_ >= end_ || next_ >= operator_end_) return;
  const std::size_t slot = next_;
  tensors_.check(slot, tensor);
  ++next_;
  if (slot == wanted_ || (tensors_.slots_[slot].is_wanted && !values_[slot].was_used))
    values_[slot] = {
        .tensor = tensor, .version = write_version_of(tensor), .was_used = values_[slot].was_used};
  if (next_ == end_) throw Filled{};
}

}  // namespace accel::interception
