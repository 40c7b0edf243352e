#include "libaccel/engine/checkpoint/files/distcp_parts.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

#include "checkpoint_tools/merge/box.h"
#include "checkpoint_tools/merge/chunk_copy.h"
#include "checkpoint_tools/merge/distcp_files.h"
#include "libaccel/engine/checkpoint/files/tensor_file.h"

namespace accel::checkpoint {
namespace {

// Bytes [begin, begin + memory.size()) of a tensor in row-major order.
struct WantedPart {
  std::uint64_t begin = 0;
  std::span<std::byte> memory;
};

WantedPart wanted_part(std::int64_t first, const at::Tensor& values) {
  return {static_cast<std::uint64_t>(first) * static_cast<std::uint64_t>(values.element_size()),
          {static_cast<std::byte*>(values.mutable_data_ptr()), values.nbytes()}};
}

// The bytes from the first element of a chunk to behind its last.
std::pair<std::uint64_t, std::uint64_t> chunk_range(const launcher::DistcpTensor& tensor,
                                                    const launcher::DistcpChunk& chunk) {
  std::uint64_t first = 0;
  std::uint64_t last = 0;
  for (std::size_t i = 0; i < tensor.shape.size(); ++i) {
    if (chunk.sizes[i] == 0) return {0, 0};
    first = first * tensor.shape[i] + chunk.offsets[i];
    last = last * tensor.shape[i] + chunk.offsets[i] + chunk.sizes[i] - 1;
  }
  const std::uint64_t element_bytes = safetensors::dtype_bits(tensor.dtype) / 8;
  return {first * element_bytes, (last + 1) * element_bytes};
}

// Copies to each part what it has of bytes of the tensor.
void copy_to_parts(const std::vector<WantedPart>& parts,
                   std::uint64_t offset,
                   std::span<const std::byte> bytes) {
  for (const WantedPart& part : parts) {
    const std::uint64_t begin = std::max(part.begin, offset);
    const std::uint64_t end = std::min(part.begin + part.memory.size(), offset + bytes.size());
    if (begin >= end) continue;
    std::memcpy(
        part.memory.data() + (begin - part.begin), bytes.data() + (begin - offset), end - begin);
  }
}

}  // namespace

safetensors::TensorInfo info_of(const launcher::DistcpTensor& tensor, std::string name) {
  return {.name = std::move(name), .dtype = tensor.dtype, .shape = tensor.shape};
}

void read_distcp_parts(LoadedParts& loaded,
                       const std::filesystem::path& folder,
                       const launcher::DistcpMetadata& metadata,
                       const DistcpNaming& name_of,
                       const PartsWanted& wanted) {
  std::unordered_map<const launcher::DistcpTensor*, std::vector<WantedPart>> parts;
  for (const launcher::DistcpTensor& tensor : metadata.tensors) {
    const auto name = name_of(tensor);
    if (!name) continue;
    const safetensors::TensorInfo info = info_of(tensor, *name);
    const auto places = wanted(info);
    if (!places) {
      const at::Tensor whole = allocate(info);
      loaded.tensors.emplace(*name, whole);
      parts[&tensor].push_back(wanted_part(0, whole));
      continue;
    }
    for (const TensorPart& part : add_divided(loaded, info, *places))
      parts[&tensor].push_back(wanted_part(part.begin, part.values));
  }

  const std::vector<WantedPart>* present = nullptr;  // of the tensor whose chunk is copied
  launcher::ChunkCopy copy([&present](std::uint64_t offset, std::span<const std::byte> bytes) {
    copy_to_parts(*present, offset, bytes);
  });
  launcher::visit_distcp_chunks(
      folder,
      metadata,
      [&](const launcher::DistcpTensor& tensor, const launcher::DistcpChunk& chunk) {
        const auto found = parts.find(&tensor);
        if (found == parts.end()) return false;
        const auto [begin, end] = chunk_range(tensor, chunk);
        return std::ranges::any_of(
            found->second, [begin = begin, end = end](const WantedPart& part) {
              return part.begin < end && begin < part.begin + part.memory.size();
            });
      },
      [&](const launcher::DistcpTensor& tensor,
          const launcher::DistcpChunk& chunk,
          const launcher::SavedTensor& saved) {
        present = &parts.at(&tensor);
        copy.run(saved, {.offsets = chunk.offsets, .sizes = chunk.sizes}, tensor.shape, 0);
      });
}

}  // namespace accel::checkpoint
