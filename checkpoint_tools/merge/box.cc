#include "checkpoint_tools/merge/box.h"

#include <algorithm>
#include <bit>
#include <cstddef>
#include <utility>

namespace accel::launcher {
namespace {

constexpr std::size_t kMostDividedDims = 8;

// How often the boxes hold an element is a step function, and their corners are its steps, with a sign that changes from each
// corner to its neighbours. Two sums of boxes are the same function exactly when their corners are the same after those of
// opposite signs have cancelled out, which takes a sort where comparing the boxes takes all pairs.
class Corners {
 public:
  // `boxes`: how many will be added; and one subtracted.
  Corners(std::vector<std::size_t> dims, std::span<const std::uint64_t> shape, std::size_t boxes)
      : dims_(std::move(dims)), shape_(shape) {
    for (auto* half : {&plus_, &minus_}) half->reserve(((boxes + 1) << dims_.size()) / 2 + 1);
  }

  void add(const Box& box) { put(box, plus_, minus_); }
  void subtract(const Box& box) { put(box, minus_, plus_); }

  [[nodiscard]] bool cancel_out() {
    std::ranges::sort(plus_);
    std::ranges::sort(minus_);
    return plus_ == minus_;
  }

 private:
  // Its number among the points of the divided dimensions. They have two elements at least, and all of the shape's fit into 64
  // bits: with the one behind the last in each of 8 there are less than 2^69.
  using Point = unsigned __int128;

  void put(const Box& box, std::vector<Point>& even, std::vector<Point>& odd) const {
    for (std::size_t ends = 0; ends < std::size_t{1} << dims_.size(); ++ends) {
      Point point = 0;
      for (std::size_t i = 0; i < dims_.size(); ++i) {
        const std::size_t dim = dims_[i];
        const std::uint64_t extent = (ends >> i & 1) != 0 ? box.sizes[dim] : 0;
        point = point * (Point{shape_[dim]} + 1) + box.offsets[dim] + extent;
      }
      (std::popcount(ends) % 2 == 0 ? even : odd).push_back(point);
    }
  }

  std::vector<std::size_t> dims_;  // those that some box does not run through
  std::span<const std::uint64_t> shape_;
  std::vector<Point> plus_;
  std::vector<Point> minus_;
};

}  // namespace

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

std::optional<bool> cover_exactly(std::span<const Box> boxes,
                                  std::span<const std::uint64_t> shape,
                                  std::size_t most_corners) {
  if (volume(shape) == 0) return boxes.empty();
  std::vector<std::size_t> divided;
  for (std::size_t dim = 0; dim < shape.size(); ++dim)
    if (std::ranges::any_of(boxes, [&](const Box& box) { return box.sizes[dim] != shape[dim]; }))
      divided.push_back(dim);
  if (divided.size() > kMostDividedDims || boxes.size() > (most_corners >> divided.size()))
    return std::nullopt;
  Corners corners(std::move(divided), shape, boxes.size());
  for (const Box& box : boxes) corners.add(box);
  corners.subtract(
      {.offsets = std::vector<std::uint64_t>(shape.size()), .sizes = {shape.begin(), shape.end()}});
  return corners.cancel_out();
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
