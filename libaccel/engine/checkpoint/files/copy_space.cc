#include "libaccel/engine/checkpoint/files/copy_space.h"

#include <ATen/core/grad_mode.h>

#include "libaccel/tensors/alignment.h"
#include "libaccel/tensors/large_tensor.h"

namespace accel::checkpoint {
namespace {

constexpr std::uint64_t kAlignment = 64;  // as LibTorch's own memory on the CPU

std::uint64_t space_of(const at::Tensor& tensor) {
  return rounded_up(tensor.nbytes(), kAlignment);
}

// Whether a copy is so many bytes in the same order. The rest is cloned.
bool is_plain(const at::Tensor& tensor) {
  return tensor.is_cpu() && tensor.layout() == at::kStrided && !tensor.is_quantized() &&
         !tensor.is_conj() && !tensor.is_neg() && tensor.is_non_overlapping_and_dense() &&
         tensor.numel() > 0;
}

}  // namespace

void CopySpace::make_room(std::uint64_t bytes) {
  const bool is_in_use = memory_.defined() && memory_.storage().use_count() > 1;
  if (!is_in_use && bytes <= this->bytes()) return;
  memory_.reset();  // first, so that there are never two
  memory_ = empty_large_tensor({static_cast<std::int64_t>(bytes)}, at::kByte);
}

void CopySpace::replace_by_copies(const std::vector<at::Tensor*>& tensors) {
  (void)replace_by_places(tensors, [](const at::Tensor&) { return false; });
}

std::vector<CopySpace::Place> CopySpace::replace_by_places(const std::vector<at::Tensor*>& tensors,
                                                           const Waits& waits) {
  const at::NoGradGuard no_grad;
  std::uint64_t needed = 0;
  for (const at::Tensor* const tensor : tensors)
    if (is_plain(*tensor)) needed += space_of(*tensor);
  make_room(needed);
  std::uint64_t used = 0;
  std::vector<Place> places;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    at::Tensor& tensor = *tensors[i];
    if (!is_plain(tensor)) {
      tensor = tensor.detach().clone();
      continue;
    }
    const auto begin = static_cast<std::int64_t>(used);
    const auto bytes = static_cast<std::int64_t>(tensor.nbytes());
    at::Tensor copy = memory_.narrow(0, begin, bytes).view(tensor.scalar_type());
    copy = copy.as_strided(tensor.sizes(), tensor.strides(), copy.storage_offset());
    used += space_of(tensor);
    // Not the tensor itself, which may be given other memory.
    at::Tensor from = tensor.detach();
    if (waits(tensor)) {
      places.push_back({i, std::move(from), copy});
    } else {
      copy.copy_(from);
    }
    tensor = std::move(copy);
  }
  return places;
}

}  // namespace accel::checkpoint
