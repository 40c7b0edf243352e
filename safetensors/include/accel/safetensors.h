// Safetensors header: the table of contents of a .safetensors file, checked before a byte is used.
//
// A file is an 8-byte little-endian length, that many bytes of JSON, then the tensors' data:
//
//   {"__metadata__": {string: string}, name: {"dtype": "F32", "shape": [2, 3], "data_offsets": [0,
//   24]}, ...}
//
// Offsets count from the first byte of data. In a Header from these functions the tensors follow one
// another, cover the data exactly (no overlap, no hole), have unique names, and have the size that
// follows from dtype and shape. Every size in the file is checked before that many bytes are
// allocated or read.
//
// Threads:  pure functions and value types.
// Cost:     one pass over the header and a sort of the tensors; the data is not touched.
// Source:   the format section of huggingface/safetensors; tests/peer/safetensors_interop.py.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <accel/result.h>

namespace accel::safetensors {

// The format's own limit: it keeps a hostile file from making the reader parse gigabytes of JSON.
inline constexpr std::uint64_t kMaxHeaderBytes = 100'000'000;
// Length of the number before the header.
inline constexpr std::size_t kPrefixBytes = 8;
// The data starts at a multiple of this.
inline constexpr std::uint64_t kDataAlignment = 8;

// In the order in which the reference implementation sorts tensors: the last one is first in the
// file.
enum class Dtype : std::uint8_t {
  kBool,
  kF4,
  kF6E2M3,
  kF6E3M2,
  kU8,
  kI8,
  kF8E5M2,
  kF8E4M3,
  kF8E8M0,
  kF8E4M3Fnuz,
  kF8E5M2Fnuz,
  kI16,
  kU16,
  kF16,
  kBF16,
  kI32,
  kU32,
  kF32,
  kC64,
  kF64,
  kI64,
  kU64,
  kCount_,  // not a dtype: the number of dtypes
};

// "F32".
[[nodiscard]] ACCEL_EXPORT std::string_view dtype_name(Dtype dtype) noexcept;
[[nodiscard]] ACCEL_EXPORT std::optional<Dtype> parse_dtype(std::string_view name) noexcept;
// Bits of one element: 4 and 6 exist, so not bytes.
[[nodiscard]] ACCEL_EXPORT unsigned dtype_bits(Dtype dtype) noexcept;

// One tensor in the header of a file.
struct TensorInfo {
  std::string name;
  Dtype dtype = Dtype::kF32;
  std::vector<std::uint64_t> shape;  // empty for a single value
  std::uint64_t begin = 0;           // bytes from the start of the data
  std::uint64_t end = 0;

  [[nodiscard]] std::uint64_t num_bytes() const noexcept { return end - begin; }
};

struct Header {
  std::map<std::string, std::string> metadata;
  std::vector<TensorInfo> tensors;  // by offset
  std::uint64_t data_offset = 0;    // from the start of the file to the first data byte
  std::uint64_t data_bytes = 0;
};

// Bytes of `shape` elements of `dtype`.
// Errors  kSafetensorsHeader when the product overflows or does not end at a byte; names `name`.
ACCEL_EXPORT Result<std::uint64_t> tensor_bytes(std::string_view name,
                                                Dtype dtype,
                                                std::span<const std::uint64_t> shape);

// Reads the length of the header out of a file's first bytes (fewer than 8 when the file is
// shorter). Errors  kSafetensorsHeader: the file is too short, or the length is above
// kMaxHeaderBytes or the file.
ACCEL_EXPORT Result<std::uint64_t> header_length(std::span<const std::byte> first_bytes,
                                                 std::uint64_t file_bytes);

// Parses and checks the JSON of a file that has `file_bytes` bytes in all.
// Errors  kSafetensorsHeader: names the tensor and the values that are wrong.
ACCEL_EXPORT Result<Header> parse_header(std::string_view json, std::uint64_t file_bytes);

// The two functions above on the file behind a descriptor that can be read with pread.
// Errors  kSafetensorsHeader, kFileIo.
ACCEL_EXPORT Result<Header> read_header(int fd);

// A tensor without a place in a file yet.
struct TensorSpec {
  std::string name;
  Dtype dtype = Dtype::kF32;
  std::vector<std::uint64_t> shape;
};

struct Layout {
  Header header;
  std::string bytes;  // the start of the file: length, JSON, blanks up to the alignment
};

// Places tensors as the reference implementation does: larger dtypes first, then by name, so that
// every tensor is aligned for its dtype. The same input always gives the same bytes (metadata is
// sorted). Errors  kInvalidArgument: a name twice, not UTF-8, or reserved; kSafetensorsHeader:
// header too large.
ACCEL_EXPORT Result<Layout> plan_layout(std::vector<TensorSpec> tensors,
                                        std::map<std::string, std::string> metadata);

}  // namespace accel::safetensors
