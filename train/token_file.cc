#include "train/token_file.h"

#include <cerrno>
#include <cstddef>
#include <cstring>
#include <string>
#include <system_error>
#include <vector>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "runtime/printable.h"
#include "runtime/read_fully.h"
#include "runtime/text/text_file.h"
#include "train/npy_header.h"

namespace accel::train {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kMostIndexBytes = std::size_t{4} << 30;

Error file_error(const fs::path& path, const std::string& what, int error) {
  return Error(ErrorCode::kFileIo,
               printable(path.string()) + " " + what + ": " + errno_text(error));
}

TokenLayout layout_of(int fd, const fs::path& path, std::uint64_t bytes) {
  const std::string name = printable(path.string());
  const std::string kind = path.extension().string();
  if (kind == ".npy") {
    std::string head(kNpyHeadBytes, '\0');
    const FullRead read = read_fully(fd, std::as_writable_bytes(std::span(head)), 0);
    if (read.error != 0) throw file_error(path, "cannot be read", read.error);
    head.resize(read.bytes);
    return or_throw(npy_layout(head, bytes, name));
  }
  if (kind == ".safetensors")
    return or_throw(safetensors_layout(or_throw(safetensors::read_header(fd)), name));
  if (kind == ".bin") {
    fs::path index = path;
    index.replace_extension(".idx");
    std::error_code failure;
    if (!fs::exists(index, failure))
      return {.type = TokenType::kU16, .offset = 0, .count = bytes / sizeof(std::uint16_t)};
    const std::string text =
        or_throw(read_text_file(index.string(), kMostIndexBytes, "the index of the tokens"));
    return or_throw(megatron_layout(text, bytes, printable(index.string())));
  }
  throw Error(
      ErrorCode::kInvalidArgument,
      name + " is no file of tokens: its name ends with none of .npy, .safetensors and .bin",
      "a text needs the tokenizer of its model: --tokenizer tokenizer.json");
}

template <typename Number>
void widen(const std::byte* from, std::span<std::int64_t> to) {
  for (std::size_t i = 0; i < to.size(); ++i) {
    Number number{};
    std::memcpy(&number, from + i * sizeof number, sizeof number);
    to[i] = static_cast<std::int64_t>(number);
  }
}

void widen(TokenType type, const std::byte* from, std::span<std::int64_t> to) {
  switch (type) {
    case TokenType::kU8:
      return widen<std::uint8_t>(from, to);
    case TokenType::kI8:
      return widen<std::int8_t>(from, to);
    case TokenType::kU16:
      return widen<std::uint16_t>(from, to);
    case TokenType::kI16:
      return widen<std::int16_t>(from, to);
    case TokenType::kU32:
      return widen<std::uint32_t>(from, to);
    case TokenType::kI32:
      return widen<std::int32_t>(from, to);
    case TokenType::kU64:
      return widen<std::uint64_t>(from, to);
    case TokenType::kI64:
      return widen<std::int64_t>(from, to);
  }
}

}  // namespace

TokenFile::TokenFile(const fs::path& path)
    : path_(path), file_(::open(path.c_str(), O_RDONLY | O_CLOEXEC)) {
  struct stat info {};
  if (!file_ || ::fstat(file_.get(), &info) != 0) throw file_error(path, "cannot be read", errno);
  if (!S_ISREG(info.st_mode)) throw file_error(path, "is no file", EINVAL);
  layout_ = layout_of(file_.get(), path, static_cast<std::uint64_t>(info.st_size));
}

void TokenFile::read(std::int64_t first, std::span<std::int64_t> tokens) const {
  const std::size_t width = bytes_of(layout_.type);
  std::vector<std::byte> bytes(tokens.size() * width);
  const std::uint64_t offset = layout_.offset + static_cast<std::uint64_t>(first) * width;
  const FullRead read = read_fully(file_.get(), bytes, offset);
  if (read.bytes < bytes.size())
    throw file_error(
        path_, "has no tokens at " + std::to_string(first), read.error == 0 ? EIO : read.error);
  widen(layout_.type, bytes.data(), tokens);
}

}  // namespace accel::train
