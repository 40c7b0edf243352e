#include "launcher/merge/box.h"

#include <algorithm>
#include <numeric>

namespace accel::launcher {

std::optional<std::uint64_t> volume(std::span<const std::uint64_t> sizes) {
  std::uint64_t product = 1;
  for (const std::uint64_t size : sizes) {
    if (size == 0) return 0;
  }
  for (const std::uint64_t size : sizes)
    if (__builtin_mul_overflow(product, size, &product)) return std::nullopt;
  return product;
}

bool is_within(const Box& box, std::span<const std::uint64_t> shape) {
  for (std::size_t i = 0; i < shape.size(); ++i)
    if (box.offsets[i] > shape[i] || box.sizes[i] > shape[i] - box.offsets[i]) return false;
  return true;
}

bool overlap(const Box& a, const Box& b) {
  for (std::size_t i = 0; i < a.sizes.size(); ++i) {
    const std::uint64_t begin = std::max(a.offsets[i], b.offsets[i]);
    const std::uint64_t end = std::min(a.offsets[i] + a.sizes[i], b.offsets[i] + b.sizes[i]);
    if (begin >= end) return false;
  }
  return true;
}

// By the first row: only boxes whose ranges of the first dimension meet are compared.
std::optional<BoxPair> find_overlap(std::span<const Box> boxes) {
  std::vector<std::size_t> order(boxes.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  const auto begin_of = [&](std::size_t i) {
    return boxes[i].offsets.empty() ? 0 : boxes[i].offsets.front();
  };
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    return begin_of(a) < begin_of(b);
  });
  for (std::size_t i = 0; i < order.size(); ++i) {
    const Box& box = boxes[order[i]];
    const std::uint64_t end = box.sizes.empty() ? 1 : begin_of(order[i]) + box.sizes.front();
    for (std::size_t j = i + 1; j < order.size() && begin_of(order[j]) < end; ++j)
      if (overlap(box, boxes[order[j]])) return BoxPair{order[i], order[j]};
  }
  return std::nullopt;
}

BoxRows::BoxRows(const Box& box, std::span<const std::uint64_t> shape) {
  std::uint64_t stride = 1;
  bool is_adjacent = true;  // of this dimension's indices, so far from the last to the first
  for (std::size_t i = shape.size(); i-- > 0;) {
    element_ += box.offsets[i] * stride;
    if (is_adjacent) {
      length_ *= box.sizes[i];
    } else if (box.sizes[i] != 1) {
      outer_.push_back({.size = box.sizes[i], .stride = stride});
    }
    is_adjacent = is_adjacent && box.sizes[i] == shape[i];
    stride *= shape[i];
  }
}

bool BoxRows::next() noexcept {
  for (Dim& dim : outer_) {
    element_ += dim.stride;
    if (++dim.index < dim.size) return true;
    element_ -= dim.stride * dim.size;
    dim.index = 0;
  }
  return false;
}

}  // namespace accel::launcher
