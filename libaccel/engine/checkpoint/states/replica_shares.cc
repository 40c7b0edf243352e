#include "libaccel/engine/checkpoint/states/replica_shares.h"

#include <algorithm>
#include <string>

#include "libaccel/engine/checkpoint/files/tensor_file.h"
#include "runtime/checkpoint/hashed_file.h"

namespace accel::checkpoint {
namespace {

constexpr std::int64_t kCutElements = 16;
constexpr std::int64_t kSampleElements = 8;

// Where the share of `place` begins in a tensor whose bytes begin at `offset` of all.
std::int64_t cut_in(
    const TensorSize& tensor, std::int64_t offset, std::int64_t all, int place, int count) {
  if (place == count) return tensor.numel;
  const std::int64_t cut = all / count * place + std::min<std::int64_t>(all % count, place);
  const std::int64_t elements = (cut - offset) / tensor.element_bytes;
  if (cut <= offset) return 0;
  if (elements >= tensor.numel) return tensor.numel;
  return elements / kCutElements * kCutElements;
}

}  // namespace

std::vector<ElementRange> shares_of(std::span<const TensorSize> tensors, const Sharer& sharer) {
  std::int64_t all = 0;
  for (const TensorSize& tensor : tensors) all += tensor.numel * tensor.element_bytes;
  std::vector<ElementRange> shares;
  std::int64_t offset = 0;
  for (const TensorSize& tensor : tensors) {
    shares.push_back({cut_in(tensor, offset, all, sharer.place, sharer.count),
                      cut_in(tensor, offset, all, sharer.place + 1, sharer.count)});
    offset += tensor.numel * tensor.element_bytes;
  }
  return shares;
}

bool is_shareable(const at::Tensor& tensor) {
  return tensor.defined() && !tensor.is_meta() && tensor.layout() == at::kStrided &&
         !tensor.is_quantized() && !tensor.is_conj() && !tensor.is_neg() && tensor.numel() > 0 &&
         tensor.is_contiguous();
}

std::uint64_t sample_of(std::span<const at::Tensor> tensors) {
  RunningHash hash;
  for (const at::Tensor& tensor : tensors) {
    const std::int64_t numel = tensor.numel();
    const at::Tensor some = plain(tensor.detach().view({-1}).narrow(
        0, numel / 2, std::min(kSampleElements, numel - numel / 2)));
    const std::string what =
        std::string(c10::toString(tensor.scalar_type())) + " " + std::to_string(numel) + ";";
    hash.update(std::as_bytes(std::span(what)));
    hash.update({static_cast<const std::byte*>(some.const_data_ptr()), some.nbytes()});
  }
  return hash.digest().xxh3;
}

void add_shares(std::span<const at::Tensor> tensors,
                const Sharer& sharer,
                DividedTensors& divided) {
  std::vector<TensorSize> sizes;
  for (const at::Tensor& tensor : tensors)
    sizes.push_back({tensor.numel(), static_cast<std::int64_t>(tensor.element_size())});
  const std::vector<ElementRange> shares = shares_of(sizes, sharer);
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const auto [begin, end] = shares[i];
    std::vector<TensorPart> parts;
    if (end > begin)
      parts.push_back({begin, tensors[i].detach().view({-1}).narrow(0, begin, end - begin)});
    divided.add(tensors[i], std::move(parts));
  }
}

}  // namespace accel::checkpoint
