// The slots of a buffer are tensors with storages of their own over its memory, not views of it: grad.detach_(), which
// Optimizer::zero_grad(false) calls, refuses views, and torch::save() of a gradient writes its storage whole.

#include "libaccel/engine/gradients/gradient_buckets.h"

#include <algorithm>
#include <string>
#include <utility>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>

#include <accel/error.h>

#include "libaccel/engine/gradients/communication_hooks.h"
#include "libaccel/engine/gradients/overlapped_sums.h"
#include "libaccel/engine/process/process_group.h"
#include "libaccel/engine/shm/group/byte_group.h"
#include "libaccel/tensors/alignment.h"

namespace accel {
namespace {

// Of a slot, which begins at a cache line.
std::int64_t slot_numel(std::int64_t numel, at::ScalarType dtype) {
  return rounded_up(numel, static_cast<std::int64_t>(kCacheLine / c10::elementSize(dtype)));
}

std::size_t buffer_bytes(std::int64_t numel, at::ScalarType dtype) {
  return rounded_up(static_cast<std::size_t>(numel) * c10::elementSize(dtype), kCacheLine);
}

bool is_dense_and_real(const NamedParameter& parameter) {
  const at::Tensor& tensor = parameter.tensor;
  return !parameter.expects_sparse_gradient && tensor.device().is_cpu() &&
         tensor.layout() == at::kStrided && at::isFloatingType(tensor.scalar_type()) &&
         tensor.is_non_overlapping_and_dense();
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
                                 std::int64_t bucket_bytes,
                                 CommunicationHook hook)
    : parameters_(std::move(parameters)),
      group_(std::move(group)),
      hook_(std::move(hook)),
      ranks_(group_),
      place_of_(parameters_.size()) {
  if (!hook_) find_room();
  plan(bucket_bytes);
  make_buffers(buckets_);
  if (!hook_ && should_overlap(group_->backend(), buckets_.size(), process_env()))
    sums_ = std::make_unique<OverlappedSums>(group_);
}

GradientBuckets::~GradientBuckets() = default;

ExchangeState::Rules GradientBuckets::rules() const {
  ExchangeState::Rules rules;
  for (const auto& [bucket, slot] : place_of_) rules.group_of.push_back(bucket);
  return rules;
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
    if (!is_apart) bucket.numel += hook_ ? tensor.numel() : slot_numel(tensor.numel(), dtype);
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

void GradientBuckets::before_backward(bool exchanges, const std::vector<at::Tensor>&) {
  if (!exchanges) return;
  const at::NoGradGuard no_grad;
  separate_gradients(parameters_);
}

bool GradientBuckets::begin(bool /*has_gradients*/) {
  drop();  // of an exchange that a forward has ended
  for (Bucket& bucket : buckets_) {
    if (is_held_by_others(bucket)) make_buffers({&bucket, 1});
  }
  return true;
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

void GradientBuckets::take(std::size_t parameter, const at::Tensor& arrived) {
  const NamedParameter& own = parameters_[parameter];
  if (own.tensor.grad().is_sparse()) {
    throw Error(ErrorCode::kUnsupported,
                "the gradient of " + own.name + " is sparse",
                "let torch::nn::Embedding say sparse(true) before prepare(), or make the gradient "
                "dense");
  }
  Slot& slot = buckets_[place_of_[parameter].first].slots[place_of_[parameter].second];
  if (slot.is_apart) {
    slot.gradient = room_->taken(own.tensor.grad(), own.tensor, arrived);
    own.tensor.mutable_grad() = slot.gradient;  // whatever the user makes of that meanwhile
  } else if (slot.gradient.defined()) {
    take_into(slot);
  }
}

// Moves the parameter's gradient there.
void GradientBuckets::take_into(Slot& slot) {
  at::Tensor& gradient = parameters_[slot.parameter].tensor.mutable_grad();
  if (!gradient.defined()) {  // its part of the loss had none
    slot.gradient.zero_();
  } else if (!gradient.is_same(slot.gradient)) {
    slot.gradient.copy_(gradient);
  }
  gradient = slot.gradient;
}

void GradientBuckets::run_hook_on(std::size_t group) {
  const auto has_buffer = [](const Bucket& bucket) { return bucket.buffer.defined(); };
  if (!has_buffer(buckets_[group])) return;
  GradientBucket bucket{.buffer = buckets_[group].buffer, .index = group};
  bucket.is_last = std::none_of(
      buckets_.begin() + static_cast<std::ptrdiff_t>(group) + 1, buckets_.end(), has_buffer);
  for (const Slot& slot : buckets_[group].slots) {
    bucket.parameters.push_back(parameters_[slot.parameter].tensor);
    bucket.offsets.push_back(slot.offset);
  }
  run_hook(hook_, bucket, ranks_);
}

void GradientBuckets::reduce(std::size_t group, std::span<const std::uint8_t> /*arrived*/) {
  if (hook_) return run_hook_on(group);
  Bucket& bucket = buckets_[group];
  constexpr const char* kOperation = "averaging gradients";
  std::vector<at::Tensor> parts;
  if (bucket.buffer.defined()) parts.push_back(bucket.buffer);
  for (Slot& slot : bucket.slots) {
    if (slot.is_apart) parts.push_back(std::exchange(slot.gradient, at::Tensor()));
  }
  if (parts.empty()) return;
  const double scale = 1.0 / group_->size();
  if (sums_) {
    for (at::Tensor& part : parts) sums_->begin(part.mul_(scale), kOperation);
    return;
  }
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

void GradientBuckets::end_backward() {
  if (sums_) sums_->wait();
}

void GradientBuckets::drop() noexcept {
  if (sums_) sums_->drop();
  for (Bucket& bucket : buckets_) {
    for (Slot& slot : bucket.slots) {
      if (slot.is_apart) slot.gradient.reset();
    }
  }
}

}  // namespace accel
