// Two ways.
//
// Row-major: the source is read from front to back, in pieces of the buffer; a piece may hold many rows, or a row take many
// pieces. Each part of a row goes where it belongs.
//
// Any strides: the result is made in the buffer, in row-major order, a piece at a time, by walking over the indices; then it is
// written as above. The whole storage is in memory, since an element may lie anywhere in it.

#include "checkpoint_tools/merge/chunk_copy.h"

#include <algorithm>
#include <cstring>

#include <accel/error.h>
#include <accel/result.h>

#include "runtime/printable.h"

namespace accel::launcher {
namespace {

std::uint64_t bytes_per_element(const SavedTensor& tensor) {
  return safetensors::dtype_bits(tensor.dtype) / 8;
}

// From the first element of a chunk to the last. Requires that it has one.
std::uint64_t bytes_reached(const SavedTensor& chunk) {
  std::uint64_t last = 0;  // behind the first; within the storage, so nothing overflows
  for (std::size_t i = 0; i < chunk.shape.size(); ++i)
    last += (chunk.shape[i] - 1) * chunk.strides[i];
  const std::uint64_t reached = (last + 1) * bytes_per_element(chunk);
  const std::uint64_t held = *volume(chunk.shape) * bytes_per_element(chunk);
  if (reached <= kCopyBytes || reached / kMostSpread <= held) return reached;
  throw Error(ErrorCode::kUnsupported,
              printable(chunk.storage.path) + " has a tensor of " + std::to_string(held) +
                  " bytes that lie over " + std::to_string(reached),
              "save it with contiguous(), or merge with `accelerate merge-weights`");
}

// Hands out the row-major bytes of a box, piece by piece, to the rows they belong to.
class RowWriter {
 public:
  RowWriter(const WriteAt& write,
            const Box& box,
            std::span<const std::uint64_t> shape,
            std::uint64_t place,
            std::uint64_t element_bytes)
      : write_(write),
        rows_(box, shape),
        place_(place),
        element_bytes_(element_bytes),
        left_(rows_.length() * element_bytes) {}

  void write(std::span<const std::byte> bytes) {
    while (!bytes.empty()) {
      if (left_ == 0) {
        rows_.next();
        left_ = rows_.length() * element_bytes_;
      }
      const std::size_t count = std::min<std::uint64_t>(left_, bytes.size());
      const std::uint64_t row_end = (rows_.element() + rows_.length()) * element_bytes_;
      write_(place_ + row_end - left_, bytes.first(count));
      left_ -= count;
      bytes = bytes.subspan(count);
    }
  }

 private:
  const WriteAt& write_;
  BoxRows rows_;
  std::uint64_t place_;
  std::uint64_t element_bytes_;
  std::uint64_t left_;  // bytes of this row
};

// The elements of a tensor in row-major order, by their numbers in the storage.
class ElementWalk {
 public:
  explicit ElementWalk(const SavedTensor& tensor)
      : tensor_(tensor), index_(tensor.shape.size(), 0), element_(tensor.first) {}

  [[nodiscard]] std::uint64_t element() const { return element_; }
  void next() {
    for (std::size_t i = index_.size(); i-- > 0;) {
      element_ += tensor_.strides[i];
      if (++index_[i] < tensor_.shape[i]) return;
      element_ -= tensor_.strides[i] * tensor_.shape[i];
      index_[i] = 0;
    }
  }

 private:
  const SavedTensor& tensor_;
  std::vector<std::uint64_t> index_;
  std::uint64_t element_;
};

}  // namespace

std::span<std::byte> ChunkCopy::buffer(std::size_t bytes) {
  if (buffer_.size() < bytes) buffer_.resize(bytes);
  return std::span(buffer_).first(bytes);
}

void ChunkCopy::run(const SavedTensor& chunk,
                    const Box& box,
                    std::span<const std::uint64_t> shape,
                    std::uint64_t place) {
  if (*volume(box.sizes) == 0) return;
  if (is_row_major(chunk)) {
    copy_rows(chunk, box, shape, place);
  } else {
    pick_elements(chunk, box, shape, place);
  }
}

void ChunkCopy::copy_rows(const SavedTensor& chunk,
                          const Box& box,
                          std::span<const std::uint64_t> shape,
                          std::uint64_t place) {
  const std::uint64_t element_bytes = bytes_per_element(chunk);
  const std::uint64_t all = *volume(box.sizes) * element_bytes;
  const std::span<std::byte> piece = buffer(std::min<std::uint64_t>(all, kCopyBytes));
  peak_bytes_ = std::max(peak_bytes_, piece.size());
  RowWriter rows(write_, box, shape, place, element_bytes);
  for (std::uint64_t done = 0; done < all;) {
    const std::span<std::byte> part =
        piece.first(std::min<std::uint64_t>(piece.size(), all - done));
    or_throw(chunk.storage.read(chunk.first * element_bytes + done, part));
    rows.write(part);
    done += part.size();
  }
}

void ChunkCopy::pick_elements(const SavedTensor& chunk,
                              const Box& box,
                              std::span<const std::uint64_t> shape,
                              std::uint64_t place) {
  const std::uint64_t element_bytes = bytes_per_element(chunk);
  const std::uint64_t elements = *volume(box.sizes);
  std::vector<std::byte> storage(bytes_reached(chunk));
  or_throw(chunk.storage.read(chunk.first * element_bytes, storage));
  const std::span<std::byte> piece = buffer(kCopyBytes);
  peak_bytes_ = std::max(peak_bytes_, piece.size() + storage.size());
  RowWriter rows(write_, box, shape, place, element_bytes);
  ElementWalk walk(chunk);
  std::size_t filled = 0;
  for (std::uint64_t i = 0; i < elements; ++i, walk.next()) {
    std::memcpy(piece.data() + filled,
                storage.data() + (walk.element() - chunk.first) * element_bytes,
                element_bytes);
    filled += element_bytes;
    if (filled + element_bytes <= piece.size()) continue;
    rows.write(piece.first(filled));
    filled = 0;
  }
  rows.write(piece.first(filled));
}

}  // namespace accel::launcher
