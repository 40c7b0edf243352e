// TensorOutput: the merged weights while they are made, with a place for every tensor.
//
// Threads:  one at a time.
// Cost:     a file of torch.save() is read once more at the end, for its checksums, in pieces of 4 MiB.
// Source:   docs/reference/checkpoint_format.md, "safetensors"; torch_archive.h; pending_file.h.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include <accel/safetensors.h>

#include "checkpoint_tools/formats/zip_layout.h"
#include "checkpoint_tools/merge/pending_file.h"
#include "checkpoint_tools/merge/weights_format.h"

namespace accel::launcher {

inline constexpr std::size_t kPieceBytes = std::size_t{4} << 20;  // read or written at once

class TensorOutput {
 public:
  // Plans the file as the reference implementation does, makes it and writes its header. `metadata`: of a safetensors file; one of
  // torch.save() takes from it the further names of tied weights.
  // Errors  throws Error: as PendingFile; kInvalidArgument: a name twice, or one that is no UTF-8; kUnsupported: a dtype that the
  //         format has not.
  TensorOutput(checkpoint::FileSystem& file_system,
               const std::filesystem::path& path,
               const std::vector<safetensors::TensorSpec>& tensors,
               WeightsFormat format,
               const std::map<std::string, std::string>& metadata = {{"format", "pt"}});

  // Where a tensor begins, in bytes of the file. Requires that there is one of that name.
  [[nodiscard]] std::uint64_t place_of(const std::string& name) const { return places_.at(name); }
  // Errors  as PendingFile.
  void write(std::uint64_t offset, std::span<const std::byte> bytes) {
    file_->write(offset, bytes);
  }
  void publish();

 private:
  void write(std::uint64_t offset, const std::string& bytes);
  // What stands around the entries of an archive.
  void write_headers(const ZipLayout& layout);

  std::unordered_map<std::string, std::uint64_t> places_;
  std::unique_ptr<const ZipLayout> archive_;  // of torch.save()
  std::unique_ptr<PendingFile> file_;
};

}  // namespace accel::launcher
