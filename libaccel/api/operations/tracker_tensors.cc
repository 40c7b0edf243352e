// Tensors as values and pictures of trackers.

#include <cstdint>
#include <cstring>

#include <ATen/core/Tensor.h>

#include <accel/error.h>
#include <accel/tracker_value.h>

namespace accel {
namespace {

TrackerValue number_at(const at::Tensor& scalar) {
  if (scalar.scalar_type() == at::kBool) return scalar.item<bool>();
  if (at::isIntegralType(scalar.scalar_type(), /*includeBool=*/false))
    return scalar.item<std::int64_t>();
  return scalar.item<double>();
}

TrackerValue nested_values(const at::Tensor& tensor) {
  if (tensor.dim() == 0) return number_at(tensor);
  TrackerList list;
  for (std::int64_t i = 0; i < tensor.size(0); ++i)
    list.push_back(nested_values(tensor.select(0, i)));
  return list;
}

}  // namespace

TrackerValue listify(const at::Tensor& tensor) {
  return nested_values(tensor.detach().cpu());
}

TrackerValue::TrackerValue(const at::Tensor& tensor) : TrackerValue(listify(tensor)) {}

ImageBatch image_batch(const at::Tensor& images) {
  const at::Tensor batch = images.dim() == 3 ? images.unsqueeze(0) : images;
  if (batch.dim() != 4 || (batch.size(1) != 1 && batch.size(1) != 3)) {
    throw Error(ErrorCode::kInvalidArgument,
                "images have " + std::to_string(images.dim()) + " dimensions" +
                    (images.dim() == 3 || images.dim() == 4
                         ? ", " + std::to_string(batch.size(1)) + " of them channels"
                         : ""),
                "give [N, C, H, W] or [C, H, W] with 1 or 3 channels");
  }
  at::Tensor bytes = batch.detach().cpu();
  if (bytes.scalar_type() != at::kByte)  // cut off, not rounded: as torch.utils.tensorboard
    bytes = bytes.to(at::kFloat).mul(255).clamp(0, 255).to(at::kByte);
  bytes = bytes.permute({0, 2, 3, 1}).contiguous();
  ImageBatch result{.count = bytes.size(0),
                    .height = bytes.size(1),
                    .width = bytes.size(2),
                    .channels = bytes.size(3)};
  result.pixels.resize(static_cast<std::size_t>(bytes.numel()));
  if (!result.pixels.empty())
    std::memcpy(result.pixels.data(), bytes.const_data_ptr(), result.pixels.size());
  return result;
}

}  // namespace accel
