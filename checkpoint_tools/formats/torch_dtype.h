// TorchDtype: the names by which PyTorch's pickles speak of element types.
//
// Threads:  pure functions.
#pragma once

#include <optional>
#include <span>
#include <string_view>

#include <accel/safetensors.h>

namespace accel::launcher {

struct TorchDtype {
  safetensors::Dtype dtype;
  std::string_view name;     // "torch float32"
  std::string_view storage;  // "torch FloatStorage"; empty for what has none of its own
};

// All that a safetensors file can hold.
[[nodiscard]] std::span<const TorchDtype> torch_dtypes() noexcept;

// By either name. nullopt: safetensors has no such type (complex128, quantized ones).
[[nodiscard]] std::optional<safetensors::Dtype> dtype_of(std::string_view name) noexcept;

}  // namespace accel::launcher
