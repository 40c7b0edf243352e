// Box: a range in every dimension of a tensor, and how it lies in row-major memory.
//
// Threads:  pure functions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace accel::launcher {

struct Box {
  std::vector<std::uint64_t> offsets;
  std::vector<std::uint64_t> sizes;
};

// The product; 1 without dimensions. nullopt: it does not fit into 64 bits.
[[nodiscard]] std::optional<std::uint64_t> volume(std::span<const std::uint64_t> sizes);

// Requires of both: as many dimensions as `shape`.
[[nodiscard]] bool is_within(const Box& box, std::span<const std::uint64_t> shape);

// A million boxes have so many in four dimensions.
inline constexpr std::size_t kMostCorners = std::size_t{1} << 24;

// Whether the boxes cover the shape, each element once. nullopt: they divide more than 8 of its dimensions, which nothing that
// shards a model does, or have more than `most_corners` in those.
// Requires: they are within the shape, none is empty, and volume(shape) fits.
// Cost: sorts 2^d corners of each box, 16 bytes a corner; d is the number of dimensions that are divided.
[[nodiscard]] std::optional<bool> cover_exactly(std::span<const Box> boxes,
                                                std::span<const std::uint64_t> shape,
                                                std::size_t most_corners = kMostCorners);

// The rows of a box: ranges of elements that are adjacent in the tensor, in order.
//
//   BoxRows rows(box, shape);
//   do use(rows.element(), rows.length()); while (rows.next());
//
// Requires: the box is within the shape, and volume(shape) fits; it is not empty.
class BoxRows {
 public:
  BoxRows(const Box& box, std::span<const std::uint64_t> shape);

  [[nodiscard]] std::uint64_t length() const noexcept {
    return length_;
  }  // elements, the same for all rows
  [[nodiscard]] std::uint64_t element() const noexcept {
    return element_;
  }  // where this row begins
  // False: that was the last row.
  bool next() noexcept;

 private:
  struct Dim {
    std::uint64_t size = 0;
    std::uint64_t stride = 0;  // elements
    std::uint64_t index = 0;
  };
  std::vector<Dim> outer_;  // those that rows do not run through
  std::uint64_t length_ = 1;
  std::uint64_t element_ = 0;
};

}  // namespace accel::launcher
