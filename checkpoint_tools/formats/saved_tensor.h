// SavedTensor: one tensor as torch.save() wrote it, and where its elements lie.
//
// The archive has data.pkl, a call of torch._utils._rebuild_tensor_v2(storage, offset, size, stride, ...) that is read and
// not made, and the storage's bytes under data/<key>.
//
// Threads:  pure, but for the reads.
// Cost:     some seven small reads; elements are not touched.
// Source:   torch/serialization.py, torch/_utils.py; tests/unit/checkpoint_tools/distcp_merge_test.cc,
//           tests/fuzz/fuzz_pickle.cc.
#pragma once

#include <cstdint>
#include <vector>

#include <accel/result.h>
#include <accel/safetensors.h>

#include "checkpoint_tools/formats/file_slice.h"

namespace accel::launcher {

struct SavedTensor {
  safetensors::Dtype dtype = safetensors::Dtype::kF32;
  std::vector<std::uint64_t> shape;
  std::vector<std::uint64_t> strides;  // elements
  std::uint64_t first = 0;             // element of the storage
  FileSlice storage;                   // Every element that shape and strides reach is within
};

// Errors  kCheckpointIncomplete: it is no such archive, is damaged, or reaches beyond its storage; kUnsupported: names what it
// would call, its byte order or its dtype; kFileIo.
[[nodiscard]] Result<SavedTensor> read_saved_tensor(const FileSlice& archive);

// True when the elements lie one after the other in row-major order.
[[nodiscard]] bool is_row_major(const SavedTensor& tensor) noexcept;

}  // namespace accel::launcher
