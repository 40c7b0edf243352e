// TensorOutput: the merged model.safetensors while it is made, with a place for every tensor.
//
// Threads:  one at a time.
// Source:   docs/checkpoint_format.md, "safetensors"; pending_file.h.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include <accel/safetensors.h>

#include "launcher/merge/pending_file.h"

namespace accel::launcher {

class TensorOutput {
 public:
  // Plans the file as the reference implementation does, makes it and writes its header.
  // Errors  throws Error: as PendingFile; kInvalidArgument: a name twice, or one that is no UTF-8.
  TensorOutput(checkpoint::FileSystem& file_system,
               const std::filesystem::path& path,
               std::vector<safetensors::TensorSpec> tensors,
               std::map<std::string, std::string> metadata = {{"format", "pt"}});

  // Where a tensor begins, in bytes of the file. Requires that there is one of that name.
  [[nodiscard]] std::uint64_t place_of(const std::string& name) const { return places_.at(name); }
  // Errors  as PendingFile.
  void write(std::uint64_t offset, std::span<const std::byte> bytes) { file_.write(offset, bytes); }
  void publish() { file_.publish(); }

 private:
  TensorOutput(checkpoint::FileSystem& file_system,
               const std::filesystem::path& path,
               const safetensors::Layout& layout);

  std::unordered_map<std::string, std::uint64_t> places_;
  PendingFile file_;
};

}  // namespace accel::launcher
