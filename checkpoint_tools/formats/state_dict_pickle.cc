#include "checkpoint_tools/formats/state_dict_pickle.h"

#include <algorithm>
#include <limits>
#include <string_view>

#include <accel/error.h>

#include "checkpoint_tools/formats/little_endian.h"
#include "checkpoint_tools/formats/torch_dtype.h"
#include "runtime/printable.h"

namespace accel::launcher {
namespace {

// The opcodes of one value each, as pickletools names them.

std::string pickled_integer(std::uint64_t value) {
  if (value < 0x100) return "K" + little_endian(value, 1);
  if (value < 0x10000) return "M" + little_endian(value, 2);
  if (value < 0x80000000) return "J" + little_endian(value, 4);
  return "\x8a\x08" + little_endian(value, 8);  // LONG1, of 8 bytes
}

std::string text(std::string_view value) {
  return "X" + little_endian(value.size(), 4) + std::string(value);
}

// "module name"
std::string global(std::string_view name) {
  const std::size_t blank = name.rfind(' ');
  return "c" + std::string(name.substr(0, blank)) + "\n" + std::string(name.substr(blank + 1)) +
         "\n";
}

std::string tuple(const std::string& items) {
  return "(" + items + "t";
}

std::string numbers(std::span<const std::uint64_t> values) {
  std::string items;
  for (const std::uint64_t value : values) items += pickled_integer(value);
  return tuple(items);
}

const TorchDtype* find_torch_dtype(safetensors::Dtype dtype) {
  const auto all = torch_dtypes();
  const auto found =
      std::ranges::find_if(all, [&](const TorchDtype& row) { return row.dtype == dtype; });
  return found == all.end() ? nullptr : &*found;
}

// Those that have no class of storage are bytes, and the call names the dtype.
std::string tensor_call(const PickledTensor& tensor, const TorchDtype& dtype, std::uint64_t bytes) {
  std::vector<std::uint64_t> strides(tensor.shape.size(), 1);
  for (std::size_t i = strides.size(); i-- > 1;)
    strides[i - 1] = strides[i] * std::max<std::uint64_t>(tensor.shape[i], 1);
  const bool has_class = !dtype.storage.empty();
  const std::uint64_t elements = bytes / (safetensors::dtype_bits(dtype.dtype) / 8);
  const std::string storage =
      tuple(text("storage") + global(has_class ? dtype.storage : "torch.storage UntypedStorage") +
            text(std::to_string(tensor.storage)) + text("cpu") +
            pickled_integer(has_class ? elements : bytes)) +
      "Q";
  const std::string no_hooks = global("collections OrderedDict") + ")R";
  return global(has_class ? "torch._utils _rebuild_tensor_v2" : "torch._utils _rebuild_tensor_v3") +
         tuple(storage + pickled_integer(0) + numbers(tensor.shape) + numbers(strides) + "\x89" +
               no_hooks + (has_class ? "" : global(dtype.name))) +
         "R";
}

}  // namespace

Result<std::string> state_dict_pickle(std::span<const PickledTensor> tensors) {
  std::string pickle = "\x80\x02}";
  for (const PickledTensor& tensor : tensors) {
    const TorchDtype* dtype = find_torch_dtype(tensor.dtype);
    if (dtype == nullptr)
      return Error(ErrorCode::kUnsupported,
                   printable(tensor.name) + " has the dtype " +
                       std::string(safetensors::dtype_name(tensor.dtype)) +
                       ", which PyTorch has not",
                   "merge into model.safetensors");
    const auto bytes = safetensors::tensor_bytes(tensor.name, tensor.dtype, tensor.shape);
    if (!bytes) return bytes.error();
    constexpr std::uint64_t kMost = std::numeric_limits<std::int64_t>::max();
    if (tensor.name.size() > std::numeric_limits<std::uint32_t>::max() ||
        std::ranges::any_of(tensor.shape, [](std::uint64_t size) { return size > kMost; }))
      return Error(ErrorCode::kInvalidArgument,
                   printable(tensor.name.substr(0, 100)) + " has a size beyond 63 bits");
    pickle += text(tensor.name) + tensor_call(tensor, *dtype, *bytes) + "s";
  }
  return pickle + ".";
}

}  // namespace accel::launcher
