#include "train/token_layout.h"

#include <array>
#include <cstring>
#include <optional>
#include <utility>

#include "runtime/printable.h"
#include "train/npy_header.h"

namespace accel::train {
namespace {

constexpr std::string_view kKinds =
    "give token files as .npy, .safetensors, .bin with .idx of Megatron-LM, or .bin of 16-bit "
    "tokens";

Error unreadable(const std::string& name, const std::string& reason) {
  return Error(ErrorCode::kInvalidArgument, name + " " + reason, std::string(kKinds));
}

template <typename Number>
Number number_at(std::string_view bytes, std::size_t offset) {
  Number number{};
  std::memcpy(&number, bytes.data() + offset, sizeof number);
  return number;
}

std::optional<TokenType> type_of_descr(std::string_view descr) {
  constexpr std::pair<std::string_view, TokenType> kTypes[] = {{"|u1", TokenType::kU8},
                                                               {"|i1", TokenType::kI8},
                                                               {"<u2", TokenType::kU16},
                                                               {"<i2", TokenType::kI16},
                                                               {"<u4", TokenType::kU32},
                                                               {"<i4", TokenType::kI32},
                                                               {"<u8", TokenType::kU64},
                                                               {"<i8", TokenType::kI64}};
  for (const auto& [text, type] : kTypes) {
    if (text == descr) return type;
  }
  return std::nullopt;
}

Result<TokenLayout> fitting(TokenLayout layout, std::uint64_t bytes, const std::string& name) {
  const std::uint64_t room = bytes >= layout.offset ? bytes - layout.offset : 0;
  if (layout.count <= room / bytes_of(layout.type)) return layout;
  return unreadable(name,
                    "says that it has " + std::to_string(layout.count) + " tokens of " +
                        std::to_string(bytes_of(layout.type)) + " bytes, and has room for " +
                        std::to_string(room / bytes_of(layout.type)));
}

std::optional<TokenType> type_of_dtype(safetensors::Dtype dtype) {
  using enum safetensors::Dtype;
  switch (dtype) {
    case kU8:
      return TokenType::kU8;
    case kI8:
      return TokenType::kI8;
    case kU16:
      return TokenType::kU16;
    case kI16:
      return TokenType::kI16;
    case kU32:
      return TokenType::kU32;
    case kI32:
      return TokenType::kI32;
    case kU64:
      return TokenType::kU64;
    case kI64:
      return TokenType::kI64;
    default:
      return std::nullopt;
  }
}

// By the code of Megatron's DType.
std::optional<TokenType> type_of_code(std::uint8_t code) {
  constexpr std::array<std::optional<TokenType>, 9> kCodes = {std::nullopt,
                                                              TokenType::kU8,
                                                              TokenType::kI8,
                                                              TokenType::kI16,
                                                              TokenType::kI32,
                                                              TokenType::kI64,
                                                              std::nullopt,  // floating
                                                              std::nullopt,
                                                              TokenType::kU16};
  return code < kCodes.size() ? kCodes[code] : std::nullopt;
}

}  // namespace

std::size_t bytes_of(TokenType type) noexcept {
  constexpr std::array<std::size_t, 8> kBytes = {1, 1, 2, 2, 4, 4, 8, 8};
  return kBytes[static_cast<std::size_t>(type)];
}

Result<TokenLayout> npy_layout(std::string_view head,
                               std::uint64_t file_bytes,
                               const std::string& name) {
  const auto header = read_npy_header(head, name, std::string(kKinds));
  if (!header) return header.error();
  const auto type = type_of_descr(header->descr);
  if (!type)
    return unreadable(name, "holds " + printable(header->descr) + ", expected whole numbers");
  return fitting(
      {.type = *type, .offset = header->offset, .count = header->count}, file_bytes, name);
}

Result<TokenLayout> megatron_layout(std::string_view index,
                                    std::uint64_t bin_bytes,
                                    const std::string& name) {
  using namespace std::string_view_literals;
  constexpr std::string_view kMagic = "MMIDIDX\x00\x00"sv;
  constexpr std::size_t kType = kMagic.size() + sizeof(std::uint64_t);
  constexpr std::size_t kSequences = kType + 1;
  constexpr std::size_t kLengths = kSequences + 2 * sizeof(std::uint64_t);
  if (index.size() < kLengths || !index.starts_with(kMagic))
    return unreadable(name, "is no index of Megatron-LM");
  const auto version = number_at<std::uint64_t>(index, kMagic.size());
  if (version != 1)
    return unreadable(name, "has version " + std::to_string(version) + ", expected 1");
  const auto code = number_at<std::uint8_t>(index, kType);
  const auto type = type_of_code(code);
  if (!type)
    return unreadable(name, "holds type " + std::to_string(code) + ", expected whole numbers");
  const auto sequences = number_at<std::uint64_t>(index, kSequences);
  if (sequences > (index.size() - kLengths) / sizeof(std::int32_t))
    return unreadable(name,
                      "says that it has " + std::to_string(sequences) + " sequences, and is cut");
  std::uint64_t count = 0;
  for (std::uint64_t i = 0; i < sequences; ++i) {
    const auto length = number_at<std::int32_t>(index, kLengths + i * sizeof(std::int32_t));
    if (length < 0)
      return unreadable(name, "has a sequence of " + std::to_string(length) + " tokens");
    count += static_cast<std::uint64_t>(length);
  }
  return fitting({.type = *type, .offset = 0, .count = count}, bin_bytes, name);
}

Result<TokenLayout> safetensors_layout(const safetensors::Header& header, const std::string& name) {
  const safetensors::TensorInfo* found = nullptr;
  std::size_t num_whole = 0;
  for (const char* wanted : {"input_ids", "tokens"}) {  // the last one that is there
    for (const safetensors::TensorInfo& tensor : header.tensors) {
      if (tensor.name == wanted && type_of_dtype(tensor.dtype)) found = &tensor;
    }
  }
  if (found == nullptr) {
    for (const safetensors::TensorInfo& tensor : header.tensors) {
      if (!type_of_dtype(tensor.dtype)) continue;
      ++num_whole;
      found = &tensor;
    }
    if (num_whole != 1)
      return unreadable(name,
                        "has no tensor `tokens` or `input_ids`, and " + std::to_string(num_whole) +
                            " tensors of whole numbers");
  }
  const TokenType type = *type_of_dtype(found->dtype);
  return TokenLayout{.type = type,
                     .offset = header.data_offset + found->begin,
                     .count = found->num_bytes() / bytes_of(type)};
}

}  // namespace accel::train
