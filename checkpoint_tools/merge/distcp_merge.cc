#include "checkpoint_tools/merge/distcp_merge.h"

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "checkpoint_tools/formats/torch_file.h"
#include "checkpoint_tools/merge/box.h"
#include "checkpoint_tools/merge/chunk_copy.h"
#include "checkpoint_tools/merge/distcp_files.h"
#include "checkpoint_tools/merge/tensor_output.h"

namespace accel::launcher {
namespace {

namespace fs = std::filesystem;

MergeCount merge_chunks(const fs::path& folder,
                        const DistcpMetadata& metadata,
                        const fs::path& path,
                        WeightsFormat format,
                        checkpoint::FileSystem& file_system) {
  std::vector<safetensors::TensorSpec> specs;
  for (const DistcpTensor& tensor : metadata.tensors)
    specs.push_back({tensor.name, tensor.dtype, tensor.shape});
  TensorOutput output(file_system, path, specs, format);
  ChunkCopy copy([&output](std::uint64_t offset, std::span<const std::byte> bytes) {
    output.write(offset, bytes);
  });
  MergeCount count{.tensors = metadata.tensors.size()};
  visit_distcp_chunks(
      folder,
      metadata,
      [](const DistcpTensor&, const DistcpChunk&) { return true; },
      [&](const DistcpTensor& tensor, const DistcpChunk& chunk, const SavedTensor& saved) {
        copy.run(saved,
                 {.offsets = chunk.offsets, .sizes = chunk.sizes},
                 tensor.shape,
                 output.place_of(tensor.name));
        count.bytes += *volume(chunk.sizes) * safetensors::dtype_bits(tensor.dtype) / 8;
      });
  output.publish();
  count.peak_bytes = copy.peak_bytes();
  return count;
}

}  // namespace

Result<MergeCount> merge_distcp(const fs::path& folder,
                                const DistcpMetadata& metadata,
                                const fs::path& output,
                                WeightsFormat format,
                                checkpoint::FileSystem& file_system) {
  return to_result([&] { return merge_chunks(folder, metadata, output, format, file_system); });
}

}  // namespace accel::launcher
