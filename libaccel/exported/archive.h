// Archive: the file that torch.export.save() writes: graphs, and the bytes of weights and constants.
//
//   NAME/archive_format, archive_version, byteorder   "pt2", "0", "little"
//   NAME/models/MODEL.json                            a graph
//   NAME/data/weights/MODEL_weights_config.json       which tensor is where, of parameters and of the buffers that Python saves
//   NAME/data/weights/weight_0 ...                    the bytes of a storage; two names of one path share it: tied weights
//   NAME/data/constants/...                           the same of constants and the other buffers
//   NAME/data/aotinductor/MODEL/...                   machine code (compiled_package.h)
//
// Sizes, strides and offsets of a Payload are within its bytes: whoever has one need not check that again.
//
// Threads:  pure, but for the reads.
// Cost:     reads the directory when it is opened, and each entry that is asked for.
// Source:   torch/export/pt2_archive/_package.py, torch/csrc/export/pt2_archive_constants.h.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "checkpoint_tools/formats/zip_archive.h"
#include "runtime/unique_fd.h"

namespace accel::exported {

struct Payload {
  std::string name;
  std::string path;  // two of the same are one storage
  int dtype = 0;     // as in graph.h
  std::vector<std::int64_t> sizes;
  std::vector<std::int64_t> strides;
  std::int64_t offset = 0;  // elements
  bool is_parameter = false;
  bool requires_grad = false;
  std::string device_type;  // where it was when it was exported: "cpu"
  launcher::FileSlice bytes;
  bool has_bytes = true;  // false: the file was written without values
};

// Bytes of an element; 0: no dtype.
[[nodiscard]] std::size_t width_of_dtype(int dtype) noexcept;

class Archive {
 public:
  enum class Holds { kGraphs, kAnything };  // whether one without a graph is refused
  // Throws kCheckpointIncomplete, kCheckpointVersion, kUnsupported, kFileIo.
  explicit Archive(const std::filesystem::path& path, Holds holds = Holds::kGraphs);
  // Of a file that is open. Borrows the descriptor.
  Archive(int fd, std::uint64_t size, std::string path);
  Archive(const Archive&) = delete;  // slices borrow its path
  Archive& operator=(const Archive&) = delete;

  [[nodiscard]] const std::vector<std::string>& models() const noexcept { return models_; }
  [[nodiscard]] const std::string& path() const noexcept { return path_; }

  // Paths of entries below the archive's own folder, of those that begin so.
  [[nodiscard]] std::vector<std::string> entries(const std::string& prefix) const;
  // Of an entry. Throws kCheckpointIncomplete: there is none; kFileIo.
  [[nodiscard]] launcher::FileSlice slice_of(const std::string& entry) const;
  [[nodiscard]] std::string text(const std::string& entry) const;
  // Text of the graph. Requires: it is one of models().
  [[nodiscard]] std::string graph_text(const std::string& model) const;
  // Of a graph; none where the archive has no list of them. Throws kUnsupported for what is pickled.
  [[nodiscard]] std::vector<Payload> weights(const std::string& model) const;
  [[nodiscard]] std::vector<Payload> constants(const std::string& model) const;

 private:
  void open(std::uint64_t size, Holds holds);
  [[nodiscard]] std::vector<Payload> payloads(const std::string& folder,
                                              const std::string& config) const;

  UniqueFd owned_;
  int fd_ = -1;
  std::string path_;
  std::string root_;  // with its slash
  launcher::ZipArchive zip_;
  std::vector<std::string> models_;
};

}  // namespace accel::exported
