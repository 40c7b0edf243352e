#include "libaccel/engine/checkpoint/files/mapped_tensors.h"

#include <cstring>
#include <span>
#include <utility>

#include <ATen/ops/empty.h>

#include "libaccel/engine/checkpoint/files/tensor_file.h"
#include "libaccel/engine/optim/state_file.h"

namespace accel::checkpoint {
namespace {

using Holder = std::shared_ptr<const MappedFile>;

// Its address marks the storages.
void let_go(void* holder) {
  delete static_cast<Holder*>(holder);
}

// Requires: it is mapped.
const MappedFile& file_of(const at::Tensor& tensor) {
  return **static_cast<const Holder*>(tensor.storage().data_ptr().get_context());
}

}  // namespace

at::Tensor mapped_tensor(const Holder& file,
                         const safetensors::TensorInfo& info,
                         std::uint64_t offset) {
  const at::Tensor shape = allocate(info, at::kMeta);
  if (shape.numel() == 0) return allocate(info);
  const std::span<const std::byte> all = file->bytes();
  if (offset > all.size() || info.num_bytes() > all.size() - offset)
    file->read_ahead(offset, info.num_bytes());
  auto* const values = const_cast<std::byte*>(file->bytes().data() + offset);  // NOLINT: see above
  const std::size_t bytes = info.num_bytes();
  auto storage = c10::make_intrusive<c10::StorageImpl>(
      c10::StorageImpl::use_byte_size_t(),
      bytes,
      at::DataPtr(values, new Holder(file), &let_go, at::kCPU),
      /*allocator=*/nullptr,
      /*resizable=*/false);
  at::Tensor tensor = at::detail::make_tensor<c10::TensorImpl>(
      std::move(storage), c10::DispatchKeySet(c10::DispatchKey::CPU), shape.dtype());
  tensor.unsafeGetTensorImpl()->set_sizes_contiguous(shape.sizes());
  if (reinterpret_cast<std::uintptr_t>(values) % shape.element_size() == 0) return tensor;
  const at::Tensor copy = allocate(info);
  std::memcpy(copy.data_ptr(), values, bytes);
  file->verify_unchanged();
  return copy;
}

bool is_mapped(const at::Tensor& tensor) {
  return tensor.defined() && tensor.has_storage() &&
         tensor.storage().data_ptr().get_deleter() == &let_go;
}

void copy_loaded(const at::Tensor& to, const at::Tensor& loaded) {
  to.detach().copy_(loaded);
  if (is_mapped(loaded)) file_of(loaded).verify_unchanged();
}

at::Tensor owned(const at::Tensor& tensor) {
  if (!is_mapped(tensor)) return tensor;
  at::Tensor copy = tensor.clone();
  file_of(tensor).verify_unchanged();
  return copy;
}

at::Tensor loaded_on(c10::Device device, const at::Tensor& tensor) {
  if (tensor.device() == device) return tensor;
  at::Tensor copy = tensor.to(device);
  if (is_mapped(tensor)) file_of(tensor).verify_unchanged();
  return copy;
}

bool has_place_for(const at::Tensor& present, const at::Tensor& loaded) {
  return present.defined() && !present.is_meta() && !present.is_inference() &&
         present.is_non_overlapping_and_dense() && present.scalar_type() == loaded.scalar_type() &&
         present.sizes() == loaded.sizes();
}

at::Tensor placed_into(const at::Tensor& present, const at::Tensor& loaded) {
  if (!is_mapped(loaded)) return loaded;
  if (!has_place_for(present, loaded)) return owned(loaded);
  copy_loaded(present, loaded);
  return present;
}

at::Tensor place_on_disk(const StatePlaces* places,
                         const StateField& field,
                         const at::Tensor& loaded) {
  if (places == nullptr) return {};
  at::Tensor place = places->place_of(field);
  return has_place_for(place, loaded) ? place : at::Tensor();
}

at::Tensor placed_state(const StatePlaces* places,
                        const StateField& field,
                        const at::Tensor& present,
                        const at::Tensor& loaded) {
  const at::Tensor place = place_on_disk(places, field, loaded);
  if (!place.defined()) return placed_into(present, loaded);
  copy_to_disk(place, loaded);
  if (is_mapped(loaded)) file_of(loaded).verify_unchanged();
  return place;
}

}  // namespace accel::checkpoint
