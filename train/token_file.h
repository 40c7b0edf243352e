// TokenFile: the tokens of a file, read as they are asked for.
//
// Which kind a file is, its name says: .npy, .safetensors, .bin with a .idx of the same name beside it (Megatron-LM), .bin alone
// (16-bit tokens one after another, as nanoGPT writes them). Dimensions and documents count as one row of tokens.
//
// Threads:  read() may be called by many at once.
// Cost:     one pread() for each read(); nothing is kept in memory.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>

#include "runtime/unique_fd.h"
#include "train/token_layout.h"

namespace accel::train {

class TokenFile {
 public:
  // Throws Error kFileIo with errno; kInvalidArgument for what has no tokens, or a text: it is to be tokenized first.
  explicit TokenFile(const std::filesystem::path& path);

  [[nodiscard]] std::int64_t size() const noexcept {
    return static_cast<std::int64_t>(layout_.count);
  }
  // tokens.size() tokens from `first` on. Throws Error kFileIo, also when the file has become shorter.
  void read(std::int64_t first, std::span<std::int64_t> tokens) const;

 private:
  std::filesystem::path path_;
  UniqueFd file_;
  TokenLayout layout_;
};

}  // namespace accel::train
