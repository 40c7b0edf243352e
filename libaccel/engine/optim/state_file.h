// StateFile: tensors whose values lie in a file without a name: the states of an optimizer, parameters, gradients and activations that do
// not fit into memory.
//
// The file is gone when the last of its tensors is. Each tensor is a part of a shared mapping of the file, so whoever reads or
// writes it does not know. What was touched stays in memory until StateRange::store() sends it away.
//
// Threads:  fetch() and store() from any thread, for ranges that no other thread is at; the rest from one.
// Cost:     as much of the disk as the tensors take, from make() on.
// Source:   sync_file_range(2), madvise(2), posix_fadvise(2).
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "runtime/checkpoint/file_system.h"
#include "runtime/unique_fd.h"

namespace accel {

class StateExtent;  // what one make() has mapped

// Bytes that lie in a StateFile. Pages at its ends may have bytes of others.
class StateRange {
 public:
  // Those of a tensor, of whichever file; none: it has no bytes, or lies in no file. Requires: the tensor is dense.
  [[nodiscard]] static std::optional<StateRange> of(const at::Tensor& tensor);

  enum class Access { kRead, kWrite };
  // Brings it into memory. mapped: whole pages of the file that are used at that address, besides. Throws kFileIo where the disk
  // cannot read it.
  void fetch(Access access, std::byte* mapped = nullptr) const;
  // Writes it to the disk, and sends it out of memory. Throws kFileIo, kDiskFull.
  void store(std::byte* mapped = nullptr) const;
  // Sends it out of memory, but for what others have mapped; what was written stays there until the kernel has brought it to the disk.
  void drop(std::byte* mapped = nullptr) const noexcept;

  // Asks the disk for it, and does not wait.
  void ask() const;
  // Writes these values there in its place, without reading what is there, and sends it out of memory. Throws as store().
  void write(const std::byte* values) const;

  // Takes the other one in, where that follows this one in the same file, up to the next multiple of 64 bytes.
  [[nodiscard]] bool append(const StateRange& next);
  [[nodiscard]] std::size_t bytes() const noexcept { return bytes_; }

 private:
  std::shared_ptr<const StateExtent> extent_;
  std::byte* begin_ = nullptr;
  std::size_t bytes_ = 0;
};

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
  // Such a file, that another process has made in the folder.
  StateFile(UniqueFd file, std::filesystem::path folder, StateFileContent content);

  // A tensor like each of these, of the same shape and strides, that is zero. They lie in this order, each from a multiple of 64
  // bytes on, with nothing up to the next one. Requires: dense; they may be meta tensors. Throws kDiskFull, with the bytes that
  // are free, before anything is made; kFileIo, kOutOfMemory.
  [[nodiscard]] std::vector<at::Tensor> make(std::span<const at::Tensor> like);

  // Of all tensors that were made, in memory now.
  [[nodiscard]] std::size_t resident_bytes() const;
  [[nodiscard]] std::size_t bytes() const noexcept { return bytes_; }
  [[nodiscard]] int descriptor() const noexcept { return file_->get(); }

 private:
  void reserve(std::size_t bytes) const;

  std::filesystem::path folder_;
  StateFileContent content_;
  checkpoint::FileSystem& file_system_;
  std::shared_ptr<const UniqueFd> file_;
  std::size_t bytes_ = 0;
  bool needs_sync_ = false;
  std::vector<std::shared_ptr<const StateExtent>> extents_;
};

// Parts of tensors begin at multiples: of pages, and of what kernels of operators do at once.
inline constexpr std::int64_t kPartElements = 4096;

// Elements of a tensor's memory, in the order that they lie there: [numel], from `begin` on. Without a history.
[[nodiscard]] at::Tensor flat_part(const at::Tensor& tensor,
                                   std::int64_t begin,
                                   std::int64_t numel);

// Copies values to a tensor of a StateFile and sends them to the disk, so that few of them are in memory at once: a part at a time
// where both have the same strides. Throws as StateRange::store().
void copy_to_disk(const at::Tensor& place, const at::Tensor& values);

}  // namespace accel
