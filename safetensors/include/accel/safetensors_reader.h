// Reader: an open .safetensors file: lists its tensors and reads them whole, in ranges, or from mapped memory.
//
//   const auto reader = accel::safetensors::Reader::open("model.safetensors");
//   if (!reader) std::puts(reader.error().render().c_str());
//   for (const TensorInfo& tensor : reader->header().tensors) { ... }
//   std::vector<float> values(2 * 3);
//   reader->read("weight", std::as_writable_bytes(std::span(values)));
//
// open() checks the whole header (safetensors.h), so every offset in it is inside the file. Values are as in the
// file: little-endian, row by row. Nothing converts them.
//
// Threads:  after open() many threads may call it at once.
// Cost:     open() reads the header; read() is one pread(2) of the range; map() reads nothing.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string_view>
#include <unordered_map>

#include <accel/export.h>
#include <accel/result.h>
#include <accel/safetensors.h>

namespace accel::safetensors {

// A file in memory, which the kernel pages in; it stays valid after the Reader is destroyed. Moves, does not copy.
// No program may shorten the file meanwhile: reading a part that no longer exists ends the process with SIGBUS, as with any mmap.
// Writer and all programs that replace files by renaming are safe.
class ACCEL_EXPORT Mapping {
 public:
  Mapping(Mapping&& other) noexcept;
  Mapping& operator=(Mapping&& other) noexcept;
  ~Mapping();

  // The bytes of a tensor of the same file. They begin at a multiple of the element's size in files that Writer or
  // Python's safetensors wrote; a file from elsewhere need not be aligned: copy from it with memcpy.
  // Requires: `tensor` comes from the header of the Reader that made this.
  [[nodiscard]] std::span<const std::byte> bytes(const TensorInfo& tensor) const noexcept;

 private:
  friend class Reader;
  Mapping(const std::byte* file, std::size_t file_bytes, std::uint64_t data_offset) noexcept;

  const std::byte* file_ = nullptr;
  std::size_t file_bytes_ = 0;
  std::uint64_t data_offset_ = 0;
};

class ACCEL_EXPORT Reader {
 public:
  // Errors  kFileIo: it cannot be opened, or is not a file; kSafetensorsHeader: names the tensor and the fault. Both name `path`.
  static Result<Reader> open(const std::filesystem::path& path);

  Reader(Reader&& other) noexcept;
  Reader& operator=(Reader&& other) noexcept;
  ~Reader();

  [[nodiscard]] const Header& header() const noexcept { return header_; }

  // Errors  kSafetensorsMismatch: no tensor has this name. The pointer is valid until this object is moved or destroyed.
  [[nodiscard]] Result<const TensorInfo*> find(std::string_view name) const;

  // Fills `out` with the bytes of a tensor, from its byte `from` on. A whole tensor has num_bytes() of TensorInfo.
  // Errors  kInvalidArgument: `from` and `out` go beyond the end of the tensor, or, without `from`, `out` has another size
  //         than the tensor; kSafetensorsMismatch: no such tensor; kFileIo, also when the file became shorter.
  [[nodiscard]] Result<void> read(std::string_view name, std::span<std::byte> out) const;
  [[nodiscard]] Result<void> read_range(std::string_view name,
                                        std::uint64_t from,
                                        std::span<std::byte> out) const;

  // The whole file, read-only. Errors  kFileIo: the kernel refuses.
  [[nodiscard]] Result<Mapping> map() const;

 private:
  Reader(std::filesystem::path path, int fd, Header header);

  std::filesystem::path path_;
  int fd_ = -1;
  Header header_;
  std::unordered_map<std::string_view, std::size_t> by_name_;  // into header_.tensors
};

}  // namespace accel::safetensors
