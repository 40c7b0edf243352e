// StateFile: tensors whose values lie in a file without a name, for the states of an optimizer, and for activations, that do not fit
// into memory.
//
// The file is gone when the last of its tensors is. Each tensor is a part of a shared mapping of the file, so whoever reads or
// writes it does not know. What was touched stays in memory until store() sends it away.
//
// Threads:  fetch() and store() from any thread, for ranges that no other thread is at; the rest from one.
// Cost:     as much of the disk as the tensors take, from make() on.
// Source:   sync_file_range(2), madvise(2), posix_fadvise(2).
#pragma once

#include <cstddef>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "runtime/checkpoint/file_system.h"
#include "runtime/unique_fd.h"

namespace accel {

// Bytes that lie in a StateFile. Pages at its ends may have bytes of others.
struct StateRange {
  std::byte* begin = nullptr;
  std::size_t bytes = 0;
};

// Of a tensor that lies in one, and is dense.
[[nodiscard]] inline StateRange mapped_range(const at::Tensor& tensor) {
  return {static_cast<std::byte*>(tensor.mutable_data_ptr()), tensor.nbytes()};
}

// What lies in the file, for errors.
struct StateFileContent {
  std::string name = "the optimizer's state";
  std::string folder_option = "offload_optimizer_nvme_path";
};

class StateFile {
 public:
  // Throws kFileIo for a folder in which no file can be made.
  explicit StateFile(std::filesystem::path folder,
                     StateFileContent content = {},
                     checkpoint::FileSystem& file_system = checkpoint::real_file_system());

  // A tensor like each of these, of the same shape and strides, that is zero. They lie in this order, each from a multiple of 64
  // bytes on, with nothing up to the next one. Requires: dense. Throws kDiskFull, with the bytes that are free, before anything
  // is made; kFileIo, kOutOfMemory.
  [[nodiscard]] std::vector<at::Tensor> make(std::span<const at::Tensor> like);

  // Brings a range into memory, to be written to. Throws kFileIo where the disk cannot read it.
  void fetch(const StateRange& range) const;
  // Writes a range to the disk, and sends it out of memory. Throws kFileIo, kDiskFull.
  void store(const StateRange& range) const;

  // Whether it is a range of tensors that one call of make() has made.
  [[nodiscard]] bool has(const StateRange& range) const;
  // Of all tensors that were made, in memory now.
  [[nodiscard]] std::size_t resident_bytes() const;
  [[nodiscard]] std::size_t bytes() const noexcept { return bytes_; }

 private:
  void reserve(std::size_t bytes) const;
  [[noreturn]] void fail(const char* what, int error_number) const;
  struct Extent;  // what one make() has mapped
  [[nodiscard]] const Extent& extent_of(const StateRange& range) const;

  std::filesystem::path folder_;
  StateFileContent content_;
  checkpoint::FileSystem& file_system_;
  std::shared_ptr<const UniqueFd> file_;
  std::size_t bytes_ = 0;
  bool needs_sync_ = false;
  std::vector<std::shared_ptr<const Extent>> extents_;
};

}  // namespace accel
