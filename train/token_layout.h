// TokenLayout: where the tokens of a file lie, and how wide they are, read out of its first bytes.
//
//   .npy           train/npy_header.h: whole numbers, little-endian, in C order
//   .idx           MMIDIDX, the index of Megatron-LM beside a .bin: its type, and how many tokens its sequences have
//   .safetensors   accel/safetensors.h: the tensor `tokens`, else `input_ids`, else the only one of whole numbers
//
// Threads:  pure functions. Nothing of a file is believed: sizes are compared with the file's.
// Source:   megatron/core/datasets/indexed_dataset.py.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include <accel/result.h>
#include <accel/safetensors.h>

namespace accel::train {

enum class TokenType { kU8, kI8, kU16, kI16, kU32, kI32, kU64, kI64 };
[[nodiscard]] std::size_t bytes_of(TokenType type) noexcept;

struct TokenLayout {
  TokenType type = TokenType::kU16;
  std::uint64_t offset = 0;  // bytes from the start of the file
  std::uint64_t count = 0;   // tokens
};

// Errors of all: kInvalidArgument, with `name`, for what is no such file, holds no whole numbers, or is shorter than it says.
[[nodiscard]] Result<TokenLayout> npy_layout(std::string_view head,
                                             std::uint64_t file_bytes,
                                             const std::string& name);
// index: the whole .idx file; the tokens are in the .bin of `bin_bytes`.
[[nodiscard]] Result<TokenLayout> megatron_layout(std::string_view index,
                                                  std::uint64_t bin_bytes,
                                                  const std::string& name);
[[nodiscard]] Result<TokenLayout> safetensors_layout(const safetensors::Header& header,
                                                     const std::string& name);

}  // namespace accel::train
