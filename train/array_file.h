// ArrayFile: the samples of a .npy file, one row of its first dimension each, read as they are asked for.
//
// Threads:  read() may be called by many at once.
// Cost:     one pread() for each read(); nothing is kept in memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "runtime/unique_fd.h"

namespace accel::train {

enum class ElementType { kBool, kU8, kI8, kI16, kI32, kI64, kF16, kF32, kF64 };
[[nodiscard]] std::size_t bytes_of(ElementType type) noexcept;
// Of "<f4" and its like; nullopt for what is no number, big-endian, or of another width.
[[nodiscard]] std::optional<ElementType> element_type(std::string_view descr) noexcept;

class ArrayFile {
 public:
  // Throws Error kFileIo with errno; kInvalidArgument for what is no .npy file of numbers in C order, has no dimension or no row,
  // or is shorter than it says.
  explicit ArrayFile(const std::filesystem::path& path);

  [[nodiscard]] std::uint64_t num_rows() const noexcept { return num_rows_; }
  [[nodiscard]] const std::vector<std::int64_t>& row_shape() const noexcept { return row_shape_; }
  [[nodiscard]] ElementType type() const noexcept { return type_; }
  [[nodiscard]] std::size_t row_bytes() const noexcept { return row_bytes_; }
  // The bytes of a row, as the file has them. Throws Error kFileIo, also when the file has become shorter.
  void read(std::uint64_t row, std::span<std::byte> bytes) const;

 private:
  std::filesystem::path path_;
  UniqueFd file_;
  ElementType type_ = ElementType::kF32;
  std::uint64_t offset_ = 0;
  std::uint64_t num_rows_ = 0;
  std::size_t row_bytes_ = 0;
  std::vector<std::int64_t> row_shape_;
};

}  // namespace accel::train
