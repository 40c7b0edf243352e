// The slots of a buffer are tensors with storages of their own over its memory, not views of it: grad.detach_(), which
// Optimizer::zero_grad(false) calls, refuses views, and torch::save() of a gradient writes its storage whole.
//
// A gradient that stays apart is summed in place, perhaps before the end of the backward, so nothing that is still read may lie
// in its memory: what has arrived, of which autograd has made the gradient, and the uses of its storage tell.

#include "libaccel/engine/gradients/gradient_buckets.h"

#include <algorithm>
#include <string>
#include <utility>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>

#include <accel/error.h>

#include "libaccel/engine/process/process_group.h"
#include "libaccel/engine/shm/group/byte_group.h"
#include "libaccel/interception/backward_hooks.h"
#include "libaccel/tensors/alignment.h"

namespace accel {
namespace {

// Of a slot, which begins at a cache line.
std::int64_t slot_numel(std::int64_t numel, at::ScalarType dtype) {
  return rounded_up(numel, static_cast<std::int64_t>(kCacheLine / c10::elementSize(dtype)));
}

// A multiple of a cache line, as its slots are.
std::size_t buffer_bytes(std::int64_t numel, at::ScalarType dtype) {
  return static_cast<std::size_t>(numel) * c10::elementSize(dtype);
}

bool is_dense_and_real(const NamedParameter& parameter) {
  const at::Tensor& tensor = parameter.tensor;
  return !parameter.expects_sparse_gradient && tensor.device().is_cpu() &&
         tensor.layout() == at::kStrided && at::isFloatingType(tensor.scalar_type()) &&
         tensor.is_non_overlapping_and_dense();
}

// Whether nothing but autograd's own `arrived`, of which it has made the gradient, lies in the gradient's memory. One that
// was added to is alone (separate_gradients()), but for views that the user has.
bool is_alone(const at::Tensor& gradient, const at::Tensor& arrived) {
  if (!arrived.defined() || !arrived.is_alias_of(gradient)) return true;
  const std::size_t num_uses = gradient.storage().use_count();
  if (!arrived.is_view()) return num_uses == 2;
  return arrived._base().use_count() == 1 && num_uses == 3;
}

shm::Piece piece_of(const at::Tensor& tensor) {
  return {static_cast<std::byte*>(tensor.data_ptr()), static_cast<std::size_t>(tensor.numel())};
}

}  // namespace

bool GradientBuckets::can_serve(const std::vector<NamedParameter>& parameters,
                                const ProcessGroup& group) {
  return (group.backend() == "shm" || group.backend() == "two_level") &&
         std::all_of(parameters.begin(), parameters.end(), is_dense_and_real);
}

GradientBuckets::GradientBuckets(std::vector<NamedParameter> parameters,
                                 std::shared_ptr<ProcessGroup> group,
                                 std::int64_t bucket_bytes)
    : parameters_(std::move(parameters)),
      group_(std::move(group)),
      place_of_(parameters_.size()),
      arrived_(parameters_.size()) {
  find_room();
  plan(bucket_bytes);
  make_buffers(buckets_);
  hooks_.emplace(parameters_, [this](std::size_t parameter, const at::Tensor& arrived) {
    on_gradient(parameter, arrived);
  });
}

void GradientBuckets::find_room() {
  std::vector<std::size_t> sizes;
  for (const NamedParameter& parameter : parameters_) {
    if (parameter.tensor.nbytes() >= GradientRoom::kSmallest)
      sizes.push_back(parameter.tensor.nbytes());
  }
  room_ = GradientRoom::create(group_, sizes);
}

// Backward brings the gradients of the last parameters first. A bucket has one dtype; each dtype fills its own.
void GradientBuckets::plan(std::int64_t bucket_bytes) {
  std::vector<std::pair<at::ScalarType, std::size_t>> open;  // buckets by dtype
  for (std::size_t i = parameters_.size(); i-- > 0;) {
    const at::Tensor& tensor = parameters_[i].tensor;
    const at::ScalarType dtype = tensor.scalar_type();
    auto found = std::find_if(
        open.begin(), open.end(), [&](const auto& entry) { return entry.first == dtype; });
    if (found == open.end()) {
      found = open.insert(open.end(), {dtype, buckets_.size()});
      buckets_.push_back({.dtype = dtype});
    }
    Bucket& bucket = buckets_[found->second];
    const bool is_apart = room_ != nullptr && tensor.nbytes() >= GradientRoom::kSmallest;
    place_of_[i] = {found->second, bucket.slots.size()};
    bucket.slots.push_back({.parameter = i, .is_apart = is_apart, .offset = bucket.numel});
    if (!is_apart) bucket.numel += slot_numel(tensor.numel(), dtype);
    bucket.bytes += static_cast<std::int64_t>(tensor.nbytes());
    if (bucket.bytes >= bucket_bytes) open.erase(found);
  }
}

// In one room: such memory comes in whole huge pages, and a buffer may be small.
void GradientBuckets::make_buffers(std::span<Bucket> buckets) {
  const at::NoGradGuard no_grad;
  std::size_t bytes = 0;
  for (const Bucket& bucket : buckets) bytes += buffer_bytes(bucket.numel, bucket.dtype);
  const std::shared_ptr<std::byte> room =
      may_share_gradients() && bytes > 0 ? group_->allocate_shared(bytes) : nullptr;
  std::byte* next = room.get();
  for (Bucket& bucket : buckets) {
    for (Slot& slot : bucket.slots) slot.gradient.reset();
    bucket.buffer.reset();
    if (bucket.numel == 0) continue;
    const at::TensorOptions options(bucket.dtype);
    bucket.buffer = room == nullptr ? at::empty({bucket.numel}, options)
                                    : at::from_blob(
                                          next, {bucket.numel}, [room](void*) {}, options);
    if (room != nullptr) next += buffer_bytes(bucket.numel, bucket.dtype);
    cut_slots(bucket);
  }
}

void GradientBuckets::cut_slots(Bucket& bucket) {
  bucket.buffer.zero_();  // what lies between the slots is summed too
  auto* const memory = static_cast<std::byte*>(bucket.buffer.data_ptr());
  for (Slot& slot : bucket.slots) {
    const at::Tensor& parameter = parameters_[slot.parameter].tensor;
    if (slot.is_apart || parameter.numel() == 0) continue;
    slot.gradient = at::from_blob(
        memory + slot.offset * static_cast<std::int64_t>(c10::elementSize(bucket.dtype)),
        parameter.sizes(),
        parameter.strides(),
        [buffer = bucket.buffer](void*) {},
        bucket.buffer.options());
  }
}

void GradientBuckets::arm() {
  const at::NoGradGuard no_grad;
  separate_gradients(parameters_);
  state_ = State::kArmed;
}

void GradientBuckets::abandon() noexcept {
  if (state_ != State::kArmed) state_ = State::kLocal;
}

std::vector<std::size_t> GradientBuckets::missing() const {
  std::vector<std::size_t> missing;
  if (state_ != State::kFilling) return missing;
  for (std::size_t i = 0; i < arrived_.size(); ++i) {
    if (arrived_[i] == 0) missing.push_back(i);
  }
  return missing;
}

void GradientBuckets::begin() {
  state_ = State::kFilling;
  num_reduced_ = 0;
  std::fill(arrived_.begin(), arrived_.end(), std::uint8_t{0});
  for (Bucket& bucket : buckets_) {
    bucket.num_arrived = 0;
    for (Slot& slot : bucket.slots) {
      if (slot.is_apart) slot.gradient.reset();
    }
    if (is_held_by_others(bucket)) make_buffers({&bucket, 1});
  }
}

// Somebody has kept a gradient that is no longer its parameter's.
bool GradientBuckets::is_held_by_others(const Bucket& bucket) const {
  return std::any_of(bucket.slots.begin(), bucket.slots.end(), [&](const Slot& slot) {
    if (!slot.gradient.defined()) return false;
    const at::Tensor& present = parameters_[slot.parameter].tensor.grad();
    if (present.defined() && present.is_alias_of(slot.gradient)) return false;
    return slot.gradient.use_count() > 1 || slot.gradient.storage().use_count() > 1;
  });
}

void GradientBuckets::on_gradient(std::size_t parameter, const at::Tensor& arrived) {
  if (state_ == State::kLocal) return;
  const at::NoGradGuard no_grad;
  if (state_ == State::kArmed) begin();
  if (std::exchange(arrived_[parameter], std::uint8_t{1}) != 0)
    throw second_gradient(parameters_[parameter]);
  if (parameters_[parameter].tensor.grad().is_sparse()) {
    throw Error(ErrorCode::kUnsupported,
                "the gradient of " + parameters_[parameter].name + " is sparse",
                "let torch::nn::Embedding say sparse(true) before prepare(), or make the gradient "
                "dense");
  }
  Bucket& bucket = buckets_[place_of_[parameter].first];
  Slot& slot = bucket.slots[place_of_[parameter].second];
  if (slot.is_apart) {
    take_apart(parameter, arrived);
    slot.gradient =
        parameters_[parameter].tensor.grad();  // whatever the user makes of that meanwhile
  } else if (slot.gradient.defined()) {
    take(parameter, slot);
  }
  if (++bucket.num_arrived == bucket.slots.size()) reduce_full_buckets();
}

// Moves the parameter's gradient into its slot.
void GradientBuckets::take(std::size_t parameter, Slot& slot) {
  at::Tensor& gradient = parameters_[parameter].tensor.mutable_grad();
  if (!gradient.defined()) {  // its part of the loss had none
    slot.gradient.zero_();
  } else if (!gradient.is_same(slot.gradient)) {
    slot.gradient.copy_(gradient);
  }
  gradient = slot.gradient;
}

// Leaves it where it is when it can be summed there. arrived: what autograd has made it of, or added to it.
void GradientBuckets::take_apart(std::size_t parameter, const at::Tensor& arrived) {
  const at::Tensor& values = parameters_[parameter].tensor;
  at::Tensor& gradient = values.mutable_grad();
  const bool can_stay = gradient.defined() && room_->holds(gradient) &&
                        gradient.scalar_type() == values.scalar_type() &&
                        gradient.sizes() == values.sizes() &&
                        gradient.strides() == values.strides() && is_alone(gradient, arrived);
  if (can_stay) return;
  at::Tensor copy = room_->empty_like(values);
  if (gradient.defined()) {
    copy.copy_(gradient);
  } else {
    copy.zero_();
  }
  gradient = copy;
}

void GradientBuckets::reduce_full_buckets() {
  while (num_reduced_ < buckets_.size()) {
    Bucket& bucket = buckets_[num_reduced_];
    if (bucket.num_arrived < bucket.slots.size()) return;
    reduce(bucket);
    ++num_reduced_;
  }
  state_ = State::kSummed;
  interception::call_at_end_of_backward([this] {
    if (state_ == State::kSummed) state_ = State::kLocal;
  });
}

void GradientBuckets::reduce(Bucket& bucket) {
  constexpr const char* kOperation = "averaging gradients";
  std::vector<at::Tensor> parts;
  if (bucket.buffer.defined()) parts.push_back(bucket.buffer);
  for (Slot& slot : bucket.slots) {
    if (slot.is_apart) parts.push_back(std::exchange(slot.gradient, at::Tensor()));
  }
  if (parts.empty()) return;
  const double scale = 1.0 / group_->size();
  std::vector<shm::Piece> pieces;
  for (const at::Tensor& part : parts) pieces.push_back(piece_of(part));
  try {
    if (group_->all_reduce_pieces(pieces, bucket.dtype, scale, kOperation)) return;
  } catch (...) {
    if (room_ != nullptr) room_->close();
    throw;
  }
  for (at::Tensor& part : parts) group_->all_reduce_(part.mul_(scale), Reduction::kSum, kOperation);
}

}  // namespace accel
