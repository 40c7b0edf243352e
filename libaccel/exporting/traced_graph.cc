#include "libaccel/exporting/traced_graph.h"

#include <accel/error.h>

#include "libaccel/exported/constants.h"

namespace accel::exporting {

std::string symbol_text(const LinearSize& size) {
  const auto integer = [](std::int64_t number) {
    return "Integer(" + std::to_string(number) + ")";
  };
  std::string text = "Symbol('s0', positive=True, integer=True)";
  if (size.per_batch != 1) text = "Mul(" + integer(size.per_batch) + ", " + text + ")";
  if (size.at_zero != 0) text = "Add(" + text + ", " + integer(size.at_zero) + ")";
  return text;
}

TensorMeta meta_of(const at::Tensor& tensor, const std::string& name) {
  const auto dtype = exported::dtype_code(tensor.scalar_type());
  const auto layout = exported::layout_code(tensor.layout());
  if (!dtype || !layout || tensor.layout() != at::kStrided || tensor.is_quantized())
    throw Error(ErrorCode::kUnsupported,
                name + " is a tensor that the file cannot describe: " + tensor.toString() + ", " +
                    c10::toString(tensor.scalar_type()),
                "export a module whose tensors are dense and not quantized");
  TensorMeta meta;
  meta.dtype = *dtype;
  meta.layout = *layout;
  meta.sizes.assign(tensor.sizes().begin(), tensor.sizes().end());
  meta.strides.assign(tensor.strides().begin(), tensor.strides().end());
  meta.offset = tensor.storage_offset();
  meta.requires_grad = tensor.requires_grad();
  meta.device_type = c10::DeviceTypeName(tensor.device().type(), /*lower_case=*/true);
  if (tensor.device().has_index()) meta.device_index = tensor.device().index();
  return meta;
}

}  // namespace accel::exporting
