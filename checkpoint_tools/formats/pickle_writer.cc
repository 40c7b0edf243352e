#include "checkpoint_tools/formats/pickle_writer.h"

#include <algorithm>
#include <bit>
#include <limits>

#include <accel/error.h>

#include "checkpoint_tools/formats/little_endian.h"
#include "checkpoint_tools/formats/torch_dtype.h"
#include "runtime/printable.h"

namespace accel::launcher::pickled {
namespace {

std::string sizes(std::span<const std::uint64_t> values) {
  std::string items;
  for (const std::uint64_t value : values) items += integer(static_cast<std::int64_t>(value));
  return tuple(items);
}

const TorchDtype* find_torch_dtype(safetensors::Dtype dtype) {
  const auto all = torch_dtypes();
  const auto found =
      std::ranges::find_if(all, [&](const TorchDtype& row) { return row.dtype == dtype; });
  return found == all.end() ? nullptr : &*found;
}

// Those that have no class of storage are bytes, and the call names the dtype.
std::string tensor_call(const Tensor& tensor, const TorchDtype& dtype, std::uint64_t bytes) {
  std::vector<std::uint64_t> strides(tensor.shape.size(), 1);
  for (std::size_t i = strides.size(); i-- > 1;)
    strides[i - 1] = strides[i] * std::max<std::uint64_t>(tensor.shape[i], 1);
  const bool has_class = !dtype.storage.empty();
  const std::uint64_t elements = bytes / (safetensors::dtype_bits(dtype.dtype) / 8);
  const std::string storage =
      tuple(text("storage") + global(has_class ? dtype.storage : "torch.storage UntypedStorage") +
            text(std::to_string(tensor.storage)) + text("cpu") +
            integer(static_cast<std::int64_t>(has_class ? elements : bytes))) +
      "Q";
  const std::string no_hooks = global("collections OrderedDict") + ")R";
  return global(has_class ? "torch._utils _rebuild_tensor_v2" : "torch._utils _rebuild_tensor_v3") +
         tuple(storage + integer(0) + sizes(tensor.shape) + sizes(strides) + boolean(false) +
               no_hooks + (has_class ? "" : global(dtype.name))) +
         "R";
}

}  // namespace

std::string none() {
  return "N";
}

std::string boolean(bool value) {
  return value ? "\x88" : "\x89";
}

std::string integer(std::int64_t value) {
  const auto bits = static_cast<std::uint64_t>(value);
  if (bits < 0x100) return "K" + little_endian(bits, 1);
  if (bits < 0x10000) return "M" + little_endian(bits, 2);
  if (value >= std::numeric_limits<std::int32_t>::min() &&
      value <= std::numeric_limits<std::int32_t>::max())
    return "J" + little_endian(bits & 0xFFFFFFFF, 4);
  return "\x8a\x08" + little_endian(bits, 8);  // LONG1, of 8 bytes
}

std::string real(double value) {
  std::string bytes = little_endian(std::bit_cast<std::uint64_t>(value), 8);
  std::ranges::reverse(bytes);
  return "G" + bytes;
}

std::string text(std::string_view value) {
  return "X" + little_endian(value.size(), 4) + std::string(value);
}

std::string global(std::string_view name) {
  const std::size_t blank = name.rfind(' ');
  return "c" + std::string(name.substr(0, blank)) + "\n" + std::string(name.substr(blank + 1)) +
         "\n";
}

std::string tuple(std::string_view items) {
  return "(" + std::string(items) + "t";
}

std::string list(std::string_view items) {
  return "](" + std::string(items) + "e";
}

std::string dict(std::string_view entries) {
  return "}(" + std::string(entries) + "u";
}

Result<std::string> tensor(std::string_view name, const Tensor& tensor) {
  const TorchDtype* dtype = find_torch_dtype(tensor.dtype);
  if (dtype == nullptr)
    return Error(ErrorCode::kUnsupported,
                 printable(name) + " has the dtype " +
                     std::string(safetensors::dtype_name(tensor.dtype)) + ", which PyTorch has not",
                 "save it as safetensors");
  const auto bytes = safetensors::tensor_bytes(std::string(name), tensor.dtype, tensor.shape);
  if (!bytes) return bytes.error();
  constexpr std::uint64_t kMost = std::numeric_limits<std::int64_t>::max();
  if (std::ranges::any_of(tensor.shape, [](std::uint64_t size) { return size > kMost; }))
    return Error(ErrorCode::kInvalidArgument,
                 printable(name.substr(0, 100)) + " has a size beyond 63 bits");
  return tensor_call(tensor, *dtype, *bytes);
}

std::string document(std::string_view value) {
  return "\x80\x02" + std::string(value) + ".";
}

}  // namespace accel::launcher::pickled
