#include "train/array_file.h"

#include <array>
#include <cerrno>
#include <string>
#include <utility>

#include <fcntl.h>
#include <sys/stat.h>

#include <accel/error.h>
#include <accel/result.h>

#include "runtime/printable.h"
#include "runtime/read_fully.h"
#include "train/npy_header.h"

namespace accel::train {
namespace {

namespace fs = std::filesystem;

constexpr const char* kArrays =
    "save the samples with numpy.save(): numbers, the first dimension is that of the samples";

struct ElementRow {
  std::string_view descr;
  std::size_t bytes;
};
// In the order of ElementType.
constexpr std::array<ElementRow, 9> kElements = {{{"|b1", 1},
                                                  {"|u1", 1},
                                                  {"|i1", 1},
                                                  {"<i2", 2},
                                                  {"<i4", 4},
                                                  {"<i8", 8},
                                                  {"<f2", 2},
                                                  {"<f4", 4},
                                                  {"<f8", 8}}};

Error array_error(const fs::path& path, const std::string& what, int error) {
  return Error(ErrorCode::kFileIo,
               printable(path.string()) + " " + what + ": " + errno_text(error));
}

}  // namespace

std::size_t bytes_of(ElementType type) noexcept {
  return kElements[static_cast<std::size_t>(type)].bytes;
}

std::optional<ElementType> element_type(std::string_view descr) noexcept {
  for (std::size_t i = 0; i < kElements.size(); ++i) {
    if (kElements[i].descr == descr) return static_cast<ElementType>(i);
  }
  return std::nullopt;
}

ArrayFile::ArrayFile(const fs::path& path)
    : path_(path), file_(::open(path.c_str(), O_RDONLY | O_CLOEXEC)) {
  struct stat info {};
  if (!file_ || ::fstat(file_.get(), &info) != 0) throw array_error(path, "cannot be read", errno);
  if (!S_ISREG(info.st_mode)) throw array_error(path, "is no file", EINVAL);
  std::string head(kNpyHeadBytes, '\0');
  const FullRead read = read_fully(file_.get(), std::as_writable_bytes(std::span(head)), 0);
  if (read.error != 0) throw array_error(path, "cannot be read", read.error);
  head.resize(read.bytes);

  const std::string name = printable(path.string());
  const auto fail = [&](const std::string& why) {
    return Error(ErrorCode::kInvalidArgument, name + " " + why, kArrays);
  };
  const NpyHeader header = or_throw(read_npy_header(head, name, kArrays));
  const auto type = element_type(header.descr);
  if (!type)
    throw fail("holds " + printable(header.descr) + ", expected numbers of at most 8 bytes");
  if (header.shape.empty() || header.count == 0) throw fail("has no samples");
  std::uint64_t bytes = 0;
  if (__builtin_mul_overflow(header.count, bytes_of(*type), &bytes) ||
      static_cast<std::uint64_t>(info.st_size) < header.offset ||
      bytes > static_cast<std::uint64_t>(info.st_size) - header.offset)
    throw fail("says that it has " + std::to_string(header.count) + " numbers of " +
               std::to_string(bytes_of(*type)) + " bytes, and is shorter");
  type_ = *type;
  offset_ = header.offset;
  num_rows_ = header.shape.front();
  row_bytes_ = bytes / num_rows_;
  row_shape_.assign(header.shape.begin() + 1, header.shape.end());
}

void ArrayFile::read(std::uint64_t row, std::span<std::byte> bytes) const {
  const FullRead read = read_fully(file_.get(), bytes, offset_ + row * row_bytes_);
  if (read.bytes == bytes.size()) return;
  throw array_error(
      path_, "has no sample " + std::to_string(row), read.error == 0 ? EIO : read.error);
}

}  // namespace accel::train
