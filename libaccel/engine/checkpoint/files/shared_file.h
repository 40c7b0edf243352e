// SharedFile: one safetensors file that all ranks write, each its parts, straight to their final places.
//
// The ranks compute the same header from the same list of tensors. One of them makes the file at its final size and writes
// the header, then each writes the ranges that its parts are. The result is what one process would have written.
//
// Threads:  one object, one thread.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include <accel/safetensors.h>
#include <accel/safetensors_file.h>

#include "libaccel/tensors/divided_tensors.h"
#include "runtime/checkpoint/file_ranges.h"
#include "runtime/checkpoint/file_system.h"
#include "runtime/checkpoint/hashed_file.h"
#include "runtime/checkpoint/mapped_file.h"

namespace accel::checkpoint {

// A tensor of the file, the same on every rank but for the parts.
struct SharedTensor {
  safetensors::TensorSpec spec;
  std::vector<TensorPart> parts;  // that this rank writes; those of all ranks make the whole tensor
  bool is_divided = false;        // not: it is the same on all ranks, and one of them writes it
};

class SharedFile {
 public:
  // Errors  throws kUnsupported, kInvalidArgument for names, as safetensors::save_file().
  SharedFile(std::string name, std::vector<SharedTensor> tensors, safetensors::Metadata metadata);

  [[nodiscard]] const std::string& name() const noexcept { return name_; }
  [[nodiscard]] std::uint64_t bytes() const noexcept;
  [[nodiscard]] const std::vector<safetensors::TensorInfo>& tensors() const noexcept {
    return layout_.header.tensors;
  }
  [[nodiscard]] const std::vector<TensorPart>& parts_of(const std::string& tensor) const {
    return parts_.at(tensor);
  }
  [[nodiscard]] bool is_divided(const std::string& tensor) const {
    return divided_.contains(tensor);
  }
  // Of the header: equal on ranks that mean the same file.
  [[nodiscard]] std::uint64_t header_hash() const;

  // Makes the file in `folder` and writes the header, not synced yet. Errors of both: as FileSystem.
  [[nodiscard]] std::vector<FileRange> create(FileSystem& file_system,
                                              const std::filesystem::path& folder,
                                              int rank) const;
  // Writes this rank's parts; the sync is left to `unsynced`. Requires: the file was made.
  [[nodiscard]] std::vector<FileRange> write(FileSystem& file_system,
                                             const std::filesystem::path& folder,
                                             int rank,
                                             UnsyncedFiles& unsynced) const;
  // The values of all parts, to be replaced by copies.
  [[nodiscard]] std::vector<at::Tensor*> part_values();

 private:
  std::string name_;
  safetensors::Layout layout_;
  std::map<std::string, std::vector<TensorPart>> parts_;
  std::set<std::string> divided_;
};

// Elements [begin, begin + numel) of a tensor.
struct PartPlace {
  std::int64_t begin = 0;
  std::int64_t numel = 0;
};
// The parts of a tensor that this rank wants; std::nullopt: the whole.
using PartsWanted =
    std::function<std::optional<std::vector<PartPlace>>(const safetensors::TensorInfo&)>;

struct LoadedParts {
  safetensors::TensorMap tensors;            // whole ones, and placeholders on the meta device
  DividedTensors divided;                    // what the placeholders stand for
  std::shared_ptr<const MappedFile> mapped;  // where they lie; nullptr: in memory of their own
};

// Whether what is loaded has memory of its own, or is looked at where the file is mapped (mapped_tensors.h).
enum class LoadedMemory { kOwn, kMapped };

// Adds a placeholder for a tensor, and returns the parts that are wanted of it, still empty: their memory is that of `loaded`.
[[nodiscard]] std::vector<TensorPart> add_divided(LoadedParts& loaded,
                                                  const safetensors::TensorInfo& info,
                                                  const std::vector<PartPlace>& places);
// Adds a tensor that was read whole, or the parts that are wanted of it.
void add_loaded(LoadedParts& loaded,
                const safetensors::TensorInfo& info,
                const at::Tensor& tensor,
                const PartsWanted& wanted);

// Reads what is wanted of a file that was written in ranges. Errors  throws kCheckpointIncomplete naming the range and the
// rank that wrote it; kFileIo.
[[nodiscard]] LoadedParts read_ranged_file(const std::filesystem::path& path,
                                           const std::vector<FileRange>& ranges,
                                           const PartsWanted& wanted,
                                           LoadedMemory memory = LoadedMemory::kOwn);

// The same of a file that was written by one rank and has one hash: read whole, one tensor at a time. Errors as
// safetensors::load_file().
struct HashedParts {
  LoadedParts loaded;
  FileDigest digest;
};
[[nodiscard]] HashedParts read_hashed_file(const std::filesystem::path& path,
                                           const PartsWanted& wanted,
                                           LoadedMemory memory = LoadedMemory::kOwn);

}  // namespace accel::checkpoint
