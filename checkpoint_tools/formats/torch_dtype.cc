#include "checkpoint_tools/formats/torch_dtype.h"

namespace accel::launcher {

std::span<const TorchDtype> torch_dtypes() noexcept {
  using enum safetensors::Dtype;
  static constexpr TorchDtype kDtypes[] = {
      {kBool, "torch bool", "torch BoolStorage"},
      {kU8, "torch uint8", "torch ByteStorage"},
      {kI8, "torch int8", "torch CharStorage"},
      {kI16, "torch int16", "torch ShortStorage"},
      {kI32, "torch int32", "torch IntStorage"},
      {kI64, "torch int64", "torch LongStorage"},
      {kU16, "torch uint16", ""},
      {kU32, "torch uint32", ""},
      {kU64, "torch uint64", ""},
      {kF16, "torch float16", "torch HalfStorage"},
      {kBF16, "torch bfloat16", "torch BFloat16Storage"},
      {kF32, "torch float32", "torch FloatStorage"},
      {kF64, "torch float64", "torch DoubleStorage"},
      {kC64, "torch complex64", "torch ComplexFloatStorage"},
      {kF8E4M3, "torch float8_e4m3fn", ""},
      {kF8E5M2, "torch float8_e5m2", ""},
      {kF8E4M3Fnuz, "torch float8_e4m3fnuz", ""},
      {kF8E5M2Fnuz, "torch float8_e5m2fnuz", ""},
      {kF8E8M0, "torch float8_e8m0fnu", ""},
  };
  return kDtypes;
}

std::optional<safetensors::Dtype> dtype_of(std::string_view name) noexcept {
  for (const TorchDtype& row : torch_dtypes())
    if (!name.empty() && (row.name == name || row.storage == name)) return row.dtype;
  return std::nullopt;
}

}  // namespace accel::launcher
