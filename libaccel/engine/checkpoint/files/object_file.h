// ObjectFile: values and tensors of LibTorch as a file of torch.save(), planned before it is written.
//
// Tensors are borrowed until it is written; those that are the same memory share it in the file.
//
// Threads:  one at a time.
// Cost:     planning walks the value; writing reads each tensor twice, for its checksum and for its bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "runtime/checkpoint/hashed_file.h"

namespace c10 {
struct IValue;
}

namespace accel::checkpoint {

class ObjectFile {
 public:
  // `folder`: what the archive is called within, as torch.save() takes it from the file's name.
  // Errors  throws kUnsupported: what a pickle for torch.load(weights_only=True) has no place for, and tensors without data or of
  // another layout (named); kInvalidArgument: values that are nested too deep.
  ObjectFile(const c10::IValue& value, std::string folder);

  // Of the whole file.
  [[nodiscard]] std::uint64_t bytes() const;
  // May be replaced by copies of the same shape and dtype.
  [[nodiscard]] std::vector<at::Tensor>& tensors() noexcept { return tensors_; }
  // Gives all bytes of the file, front to back.
  void write(const std::function<void(std::span<const std::byte>)>& append) const;

 private:
  std::string folder_;
  std::string pickle_;
  std::vector<at::Tensor> tensors_;
};

// Creates `path` in a folder that is being made; the sync is left to `unsynced`. Errors as OutputFile.
FileDigest write_object_file(FileSystem& file_system,
                             const std::filesystem::path& path,
                             const ObjectFile& object,
                             UnsyncedFiles& unsynced);

}  // namespace accel::checkpoint
