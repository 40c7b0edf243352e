// MappedTensors: values of a file as tensors on its mapping, to be copied from.
//
// They may only be read, and hold the mapping. Whoever keeps a loaded tensor beyond the load takes owned() of it. A copy is looked
// at by no hash any more; so each one is followed by a look at the file.
//
// Threads:  any.
// Errors    of whatever copies: throws kCheckpointIncomplete, and the copy is of no use, when somebody has written to the file or
//           cut it short since it was mapped.
#pragma once

#include <cstdint>
#include <memory>

#include <ATen/core/Tensor.h>

#include <accel/safetensors.h>

#include "libaccel/engine/optim/state_places.h"
#include "runtime/checkpoint/mapped_file.h"

namespace accel::checkpoint {

// offset: of the values in the file. Where the machine cannot read their type at that place it is a copy.
// Errors  kUnsupported as allocate(); kCheckpointIncomplete: they do not lie in the file.
[[nodiscard]] at::Tensor mapped_tensor(const std::shared_ptr<const MappedFile>& file,
                                       const safetensors::TensorInfo& info,
                                       std::uint64_t offset);

[[nodiscard]] bool is_mapped(const at::Tensor& tensor);
// to.copy_(loaded), without a history.
void copy_loaded(const at::Tensor& to, const at::Tensor& loaded);
// The tensor, or a copy of one that is mapped.
[[nodiscard]] at::Tensor owned(const at::Tensor& tensor);
// The tensor, or a copy of it on the device, where that is another one.
[[nodiscard]] at::Tensor loaded_on(c10::Device device, const at::Tensor& tensor);
// Whether a loaded tensor may be copied into `present`: it is there, and of that shape and type.
[[nodiscard]] bool has_place_for(const at::Tensor& present, const at::Tensor& loaded);
// What an object is to have in place of `present`: a mapped one is copied into that where it fits.
[[nodiscard]] at::Tensor placed_into(const at::Tensor& present, const at::Tensor& loaded);
// Of states that may lie on disk (engine/optim/state_places.h): the place that one of such a shape and type has there; undefined: none,
// as where `places` is nullptr.
[[nodiscard]] at::Tensor place_on_disk(const StatePlaces* places,
                                       const StateField& field,
                                       const at::Tensor& loaded);
// As placed_into(), and into that place where there is one.
[[nodiscard]] at::Tensor placed_state(const StatePlaces* places,
                                      const StateField& field,
                                      const at::Tensor& present,
                                      const at::Tensor& loaded);

}  // namespace accel::checkpoint
