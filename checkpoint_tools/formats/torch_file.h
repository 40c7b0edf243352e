// TorchFile: a file of torch.save(), and where the elements of its tensors lie.
//
// The archive has data.pkl, in which each tensor is a call of torch._utils._rebuild_tensor_v2(storage, offset, size, stride, ...)
// that is read and not made, and the bytes of storages under data/<key>.
//
// Threads:  pure, but for the reads.
// Cost:     opening reads the directory and data.pkl; a tensor one small read. Elements are not touched.
// Source:   torch/serialization.py, torch/_utils.py; tests/unit/checkpoint_tools/torch_file_test.cc,
//           tests/fuzz/fuzz_pickle.cc.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include <accel/result.h>
#include <accel/safetensors.h>

#include "checkpoint_tools/formats/file_slice.h"
#include "checkpoint_tools/formats/pickle.h"
#include "checkpoint_tools/formats/zip_archive.h"

namespace accel::launcher {

struct SavedTensor {
  safetensors::Dtype dtype = safetensors::Dtype::kF32;
  std::vector<std::uint64_t> shape;
  std::vector<std::uint64_t> strides;  // elements
  std::uint64_t first = 0;             // element of the storage
  FileSlice storage;                   // Every element that shape and strides reach is within
};

// Largest parts of an archive that are read.
struct TorchFileLimits {
  std::uint64_t pickle_bytes = std::uint64_t{64} << 20;
  std::uint64_t directory_bytes = std::uint64_t{256} << 20;
};

class TorchFile {
 public:
  // `more_names`: what the pickle may name beside what tensors need, as "module name".
  // Errors  kCheckpointIncomplete: it is no such archive, or is damaged; kUnsupported: names what it would call, its byte order;
  // kFileIo.
  [[nodiscard]] static Result<TorchFile> open(const FileSlice& archive,
                                              std::span<const std::string_view> more_names = {},
                                              const TorchFileLimits& limits = {});

  [[nodiscard]] const Pickle& pickle() const noexcept { return pickle_; }
  // Whether the node is a call that makes a tensor.
  [[nodiscard]] bool is_tensor(PickleNode node) const;
  // Errors  kCheckpointIncomplete: it is no tensor, or reaches beyond its storage; kUnsupported: its dtype, or a conjugate or
  // negative view; kFileIo.
  [[nodiscard]] Result<SavedTensor> tensor(PickleNode node) const;

 private:
  TorchFile() = default;

  FileSlice archive_;
  ZipArchive zip_;
  std::string folder_;                                     // within the archive, with its slash
  std::unordered_map<std::string, std::size_t> storages_;  // entries, by key
  std::unique_ptr<const std::string> bytes_;               // of data.pkl
  Pickle pickle_;
};

// One tensor as torch.save() wrote it: an archive that holds nothing else.
// Errors  as both functions of TorchFile.
[[nodiscard]] Result<SavedTensor> read_saved_tensor(const FileSlice& archive);

// True when the elements lie one after the other in row-major order.
[[nodiscard]] bool is_row_major(const SavedTensor& tensor) noexcept;

}  // namespace accel::launcher
