#include "checkpoint_tools/merge/distcp_files.h"

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <utility>

#include <fcntl.h>
#include <sys/stat.h>

#include <accel/error.h>
#include <accel/result.h>

#include "runtime/printable.h"
#include "runtime/unique_fd.h"

namespace accel::launcher {
namespace {

namespace fs = std::filesystem;

// File by file, from front to back, whatever the order in the metadata.
template <typename Item>
using ByFile = std::map<std::string, std::map<std::uint64_t, std::vector<Item>>>;

// One chunk of one tensor, by their numbers.
struct ChunkNumber {
  std::size_t tensor = 0;
  std::size_t chunk = 0;
};

struct DistcpFile {
  UniqueFd fd;
  std::string path;
  FileSlice all;

  explicit DistcpFile(const fs::path& name)
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

SavedTensor open_chunk(const DistcpFile& file,
                       const DistcpTensor& tensor,
                       const DistcpChunk& chunk) {
  const FileSlice archive = or_throw(file.all.part(chunk.begin, chunk.bytes));
  SavedTensor saved = or_throw(read_saved_tensor(archive));
  if (saved.shape != chunk.sizes || saved.dtype != tensor.dtype)
    throw Error(ErrorCode::kCheckpointIncomplete,
                "what " + printable(file.path) + " holds at byte " + std::to_string(chunk.begin) +
                    " has another shape or dtype than the metadata says",
                "copy the checkpoint again: its files are of different saves");
  return saved;
}

template <typename Use>
void naming(const std::string& name, const Use& use) {
  try {
    use();
  } catch (Error& error) {
    throw std::move(error.while_doing("reading " + printable(name)));
  }
}

}  // namespace

void visit_distcp_chunks(const fs::path& folder,
                         const DistcpMetadata& metadata,
                         const WantsChunk& wants,
                         const UseChunk& use) {
  ByFile<ChunkNumber> chunks;
  for (std::size_t t = 0; t < metadata.tensors.size(); ++t) {
    const DistcpTensor& tensor = metadata.tensors[t];
    for (std::size_t c = 0; c < tensor.chunks.size(); ++c)
      if (wants(tensor, tensor.chunks[c]))
        chunks[tensor.chunks[c].file][tensor.chunks[c].begin].push_back({t, c});
  }
  for (const auto& [name, places] : chunks) {
    const DistcpFile file(folder / name);
    for (const auto& [begin, numbers] : places)
      for (const ChunkNumber number : numbers) {
        const DistcpTensor& tensor = metadata.tensors[number.tensor];
        const DistcpChunk& chunk = tensor.chunks[number.chunk];
        naming(tensor.name, [&] { use(tensor, chunk, open_chunk(file, tensor, chunk)); });
      }
  }
}

void visit_distcp_values(const fs::path& folder,
                         std::span<const DistcpValue> values,
                         const UseValue& use) {
  ByFile<const DistcpValue*> by_file;
  for (const DistcpValue& value : values) {
    if (value.file.empty())
      throw Error(ErrorCode::kCheckpointIncomplete,
                  "the metadata of " + printable(folder.string()) + " does not say where " +
                      printable(value.name) + " is",
                  "copy the checkpoint again: it is cut short or was changed");
    by_file[value.file][value.begin].push_back(&value);
  }
  for (const auto& [name, places] : by_file) {
    const DistcpFile file(folder / name);
    for (const auto& place : places)
      for (const DistcpValue* const value : place.second)
        naming(value->name, [&] {
          const FileSlice bytes = or_throw(file.all.part(value->begin, value->bytes));
          use(*value, or_throw(TorchFile::open(bytes)));
        });
  }
}

}  // namespace accel::launcher
