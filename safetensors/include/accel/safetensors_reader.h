// Reader: an open .safetensors file: its tensors listed, and read whole, in ranges, or where they lie.
//
//   const auto reader = accel::safetensors::Reader::open("model.safetensors");
//   if (!reader) std::puts(reader.error().render().c_str());
//   for (const TensorInfo& tensor : reader->header().tensors) { ... }
//   std::vector<float> values(2 * 3);
//   reader->read("weight", std::as_writable_bytes(std::span(values)));
//
// The whole header is checked before open() returns (safetensors.h), so no place in it leads out of the file. Values are
// the file's: little-endian, row by row. Nothing converts them.
//
// Threads:  after open() every call may come from many threads at once.
// Cost:     open() reads the header; read() is one pread(2) of what was asked for; map() reads nothing.
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

// A file in memory, as the kernel pages it in; it holds after the Reader is gone. Moves, does not copy.
// While it is used nobody may make the file shorter: reading what is gone ends the process with SIGBUS, as with any mmap.
// Writer and everything else that replaces files by renaming them is safe.
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
  // Errors  kFileIo: it cannot be opened, or is no file; kSafetensorsHeader: what is wrong with which tensor. Both name `path`.
  static Result<Reader> open(const std::filesystem::path& path);

  Reader(Reader&& other) noexcept;
  Reader& operator=(Reader&& other) noexcept;
  ~Reader();

  [[nodiscard]] const Header& header() const noexcept { return header_; }

  // Errors  kSafetensorsMismatch: no tensor has this name. The pointer lives as long as this object stays where it is.
  [[nodiscard]] Result<const TensorInfo*> find(std::string_view name) const;

  // Fills `out` with the bytes of a tensor from byte `from` of it on. A whole tensor takes num_bytes() of TensorInfo.
  // Errors  kInvalidArgument: the tensor has fewer bytes than `from` and `out` ask for, or, without `from`, another number
  //         than `out`; kSafetensorsMismatch: no such tensor; kFileIo, also when the file became shorter.
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
