// ChunkCopy: the elements of one saved chunk, brought to their place in the whole tensor: in a merged file, or in memory.
//
// A chunk whose elements lie in row-major order passes through one buffer; of one that does not (a transposed parameter, a
// channels_last one) the part of the storage in which they lie is held whole, and they are picked.
//
// Threads:  one at a time; one object for all chunks, for its buffer's sake.
// Cost:     kCopyBytes of memory, or also at most kMostSpread times a chunk that is not in row-major order; every byte is read and written once, and rows that are adjacent in the
//           tensor in one call.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <utility>
#include <vector>

#include "checkpoint_tools/formats/torch_file.h"
#include "checkpoint_tools/merge/box.h"

namespace accel::launcher {

inline constexpr std::size_t kCopyBytes = std::size_t{4} << 20;
// Elements that lie further apart are refused: PyTorch saves a view of little of a storage without the rest of it.
inline constexpr std::uint64_t kMostSpread = 16;

// Takes bytes for a place of the output; what it throws ends the copy.
using WriteAt = std::function<void(std::uint64_t offset, std::span<const std::byte> bytes)>;

class ChunkCopy {
 public:
  explicit ChunkCopy(WriteAt write) : write_(std::move(write)) {}

  // `place`: of the whole tensor, in bytes of the output. Requires: box.sizes are the chunk's shape and the box is within
  // `shape`. Errors  throws Error: as FileSlice::read() and the output; kUnsupported: elements too far apart.
  void run(const SavedTensor& chunk,
           const Box& box,
           std::span<const std::uint64_t> shape,
           std::uint64_t place);

  // The most that was held at one time.
  [[nodiscard]] std::size_t peak_bytes() const noexcept { return peak_bytes_; }

 private:
  [[nodiscard]] std::span<std::byte> buffer(std::size_t bytes);
  void copy_rows(const SavedTensor& chunk,
                 const Box& box,
                 std::span<const std::uint64_t> shape,
                 std::uint64_t place);
  void pick_elements(const SavedTensor& chunk,
                     const Box& box,
                     std::span<const std::uint64_t> shape,
                     std::uint64_t place);

  WriteAt write_;
  std::vector<std::byte> buffer_;
  std::size_t peak_bytes_ = 0;
};

}  // namespace accel::launcher
