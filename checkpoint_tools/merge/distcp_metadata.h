// DistcpMetadata: what a folder of torch.distributed.checkpoint holds, from its `.metadata`.
//
// A tensor is made of chunks, boxes in its index space, each saved by itself somewhere in a .distcp file. Names are those of
// the state dict that was saved, by the rule of HF Accelerate's merge: when all of it lies under one key ("model"), that key
// goes. What is nested deeper is joined by dots.
//
// Threads:  pure, but for read_distcp_metadata().
// Cost:     one pass over the pickle, and read_pickle()'s memory; some 300 bytes for each chunk, and cover_exactly()'s (box.h). What is
//           kept is at most 8 times the pickle and 1 MiB, and so are the corners.
// Source:   torch/distributed/checkpoint/metadata.py, filesystem.py; tests/peer/merge_weights.py.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include <accel/result.h>
#include <accel/safetensors.h>

namespace accel::launcher {

inline constexpr std::string_view kDistcpMetadataName = ".metadata";

struct DistcpChunk {
  std::vector<std::uint64_t> offsets;  // of the box within the tensor
  std::vector<std::uint64_t> sizes;
  std::string file;  // a name within the folder
  std::uint64_t begin = 0;
  std::uint64_t bytes = 0;
};

// Where a value lies in the state dict that was saved: keys, and numbers in lists as texts; {"model", "layer.weight"}.
using DistcpPath = std::vector<std::string>;

struct DistcpTensor {
  std::string name;
  DistcpPath path;
  safetensors::Dtype dtype = safetensors::Dtype::kF32;
  std::vector<std::uint64_t> shape;
  std::vector<DistcpChunk> chunks;
};

// What is no tensor: a number, a list, an object. A file of torch.save() by itself.
struct DistcpValue {
  std::string name;
  DistcpPath path;
  std::string file;  // a name within the folder; empty: storage_data does not say where it is
  std::uint64_t begin = 0;
  std::uint64_t bytes = 0;
};

struct DistcpMetadata {
  std::vector<DistcpTensor> tensors;
  std::vector<DistcpValue> other_values;
};

// The chunks of every tensor cover it exactly: no hole, no overlap.
// Errors  kUnsupported: it names what PyTorch does not write, was saved through extensions, has a dtype that safetensors has not,
//         or a tensor in more chunks and dimensions than cover_exactly() compares; kCheckpointIncomplete: it is damaged, its chunks
//         leave a hole or overlap (named), or it describes more than so many bytes can.
[[nodiscard]] Result<DistcpMetadata> parse_distcp_metadata(std::string_view bytes);

// Errors  as above, and kFileIo. All name the file.
[[nodiscard]] Result<DistcpMetadata> read_distcp_metadata(const std::filesystem::path& folder);

}  // namespace accel::launcher
