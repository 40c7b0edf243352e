#include "checkpoint_tools/merge/distcp_merge.h"

#include <cerrno>
#include <map>
#include <utility>

#include <fcntl.h>
#include <sys/stat.h>

#include <accel/error.h>

#include "checkpoint_tools/formats/torch_file.h"
#include "checkpoint_tools/merge/box.h"
#include "checkpoint_tools/merge/chunk_copy.h"
#include "checkpoint_tools/merge/tensor_output.h"
#include "runtime/printable.h"
#include "runtime/unique_fd.h"

namespace accel::launcher {
namespace {

namespace fs = std::filesystem;

// One chunk of one tensor, by their numbers.
struct Item {
  std::size_t tensor = 0;
  std::size_t chunk = 0;
};

// File by file, from front to back, whatever the order of the tensors.
std::map<std::string, std::map<std::uint64_t, std::vector<Item>>> by_file(
    const DistcpMetadata& metadata) {
  std::map<std::string, std::map<std::uint64_t, std::vector<Item>>> items;
  for (std::size_t t = 0; t < metadata.tensors.size(); ++t)
    for (std::size_t c = 0; c < metadata.tensors[t].chunks.size(); ++c) {
      const DistcpChunk& chunk = metadata.tensors[t].chunks[c];
      items[chunk.file][chunk.begin].push_back({t, c});
    }
  return items;
}

struct OpenFile {
  UniqueFd fd;
  std::string path;
  FileSlice all;

  explicit OpenFile(const fs::path& name)
      : fd(::open(name.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)), path(name.string()) {
    struct stat status {};
    if (!fd || ::fstat(fd.get(), &status) != 0 || !S_ISREG(status.st_mode)) {
      const int reason = fd ? EINVAL : errno;
      throw Error(
          ErrorCode::kCheckpointIncomplete,
          "cannot read " + printable(path) + ", which the metadata names: " + errno_text(reason),
          "copy the checkpoint again, with the .distcp files of all ranks");
    }
    all = {.fd = fd.get(),
           .path = path,
           .begin = 0,
           .size = static_cast<std::uint64_t>(status.st_size)};
  }
};

SavedTensor open_chunk(const OpenFile& file, const DistcpTensor& tensor, const DistcpChunk& chunk) {
  const FileSlice archive = or_throw(file.all.part(chunk.begin, chunk.bytes));
  SavedTensor saved = or_throw(read_saved_tensor(archive));
  if (saved.shape != chunk.sizes || saved.dtype != tensor.dtype)
    throw Error(ErrorCode::kCheckpointIncomplete,
                "what " + printable(file.path) + " holds at byte " + std::to_string(chunk.begin) +
                    " has another shape or dtype than the metadata says",
                "copy the checkpoint again: its files are of different saves");
  return saved;
}

MergeCount merge_chunks(const fs::path& folder,
                        const DistcpMetadata& metadata,
                        const fs::path& path,
                        WeightsFormat format,
                        checkpoint::FileSystem& file_system) {
  std::vector<safetensors::TensorSpec> specs;
  for (const DistcpTensor& tensor : metadata.tensors)
    specs.push_back({tensor.name, tensor.dtype, tensor.shape});
  TensorOutput output(file_system, path, specs, format);
  ChunkCopy copy(output);
  MergeCount count{.tensors = metadata.tensors.size()};
  for (const auto& [name, places] : by_file(metadata)) {
    const OpenFile file(folder / name);
    for (const auto& [begin, items] : places)
      for (const Item& item : items) {
        const DistcpTensor& tensor = metadata.tensors[item.tensor];
        const DistcpChunk& chunk = tensor.chunks[item.chunk];
        try {
          copy.run(open_chunk(file, tensor, chunk),
                   {.offsets = chunk.offsets, .sizes = chunk.sizes},
                   tensor.shape,
                   output.place_of(tensor.name));
        } catch (Error& error) {
          throw std::move(error.while_doing("merging " + printable(tensor.name)));
        }
        count.bytes += *volume(chunk.sizes) * safetensors::dtype_bits(tensor.dtype) / 8;
      }
  }
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
