#include "checkpoint_tools/merge/shard_merge.h"

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <map>
#include <set>
#include <span>
#include <utility>
#include <vector>

#include <fcntl.h>

#include <accel/error.h>
#include <accel/safetensors.h>
#include <accel/safetensors_index.h>

#include "checkpoint_tools/formats/file_slice.h"
#include "checkpoint_tools/merge/tensor_output.h"
#include "runtime/printable.h"
#include "runtime/unique_fd.h"

namespace accel::launcher {
namespace {

namespace fs = std::filesystem;

struct Shard {
  std::string path;
  safetensors::Header header;
  std::set<std::string> expected;  // names of tensors, by the index
};

using Index = std::map<std::string, std::string>;  // a tensor's file

UniqueFd open_shard(const std::string& path) {
  UniqueFd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!file)
    throw Error(ErrorCode::kFileIo,
                "cannot read " + printable(path) + ", which the index names: " + errno_text(errno));
  return file;
}

std::vector<Shard> read_shards(const fs::path& folder, const Index& index) {
  std::map<std::string, std::set<std::string>> tensors_by_file;
  for (const auto& [tensor, file] : index) tensors_by_file[file].insert(tensor);
  std::vector<Shard> shards;
  for (auto& [name, tensors] : tensors_by_file) {
    Shard shard{.path = (folder / name).string(), .header = {}, .expected = std::move(tensors)};
    const UniqueFd file = open_shard(shard.path);
    auto header = safetensors::read_header(file.get());
    if (!header) throw std::move(header.error().while_doing("reading " + printable(shard.path)));
    shard.header = *std::move(header);
    shards.push_back(std::move(shard));
  }
  return shards;
}

// A file of an older save would be merged as if it were of this one.
void check_tensors(const Shard& shard) {
  const std::string remedy = "copy the model again, with its index and all its files";
  std::set<std::string> missing = shard.expected;
  for (const safetensors::TensorInfo& tensor : shard.header.tensors)
    if (missing.erase(tensor.name) == 0)
      throw Error(ErrorCode::kSafetensorsMismatch,
                  printable(tensor.name) + " is in " + printable(shard.path) +
                      ", where the index does not have it",
                  remedy);
  if (!missing.empty())
    throw Error(ErrorCode::kSafetensorsMismatch,
                printable(*missing.begin()) + " is not in " + printable(shard.path) +
                    ", where the index has it",
                remedy);
}

// Copies the data of one shard, tensor by tensor.
void copy_shard(const Shard& shard, TensorOutput& output, std::span<std::byte> piece) {
  const UniqueFd file = open_shard(shard.path);
  const FileSlice data{.fd = file.get(),
                       .path = shard.path,
                       .begin = shard.header.data_offset,
                       .size = shard.header.data_bytes};
  for (const safetensors::TensorInfo& tensor : shard.header.tensors) {
    const std::uint64_t place = output.place_of(tensor.name);
    for (std::uint64_t done = 0; done < tensor.num_bytes();) {
      const std::span part =
          piece.first(std::min<std::uint64_t>(piece.size(), tensor.num_bytes() - done));
      or_throw(data.read(tensor.begin + done, part));
      output.write(place + done, part);
      done += part.size();
    }
  }
}

MergeCount merge_files(const fs::path& folder,
                       const fs::path& path,
                       WeightsFormat format,
                       checkpoint::FileSystem& disk) {
  const std::vector<Shard> shards = read_shards(
      folder, or_throw(safetensors::files_by_tensor(folder / safetensors::kModelIndexName)));
  std::vector<safetensors::TensorSpec> specs;
  std::map<std::string, std::string> metadata;
  std::set<std::string> names;
  MergeCount count;
  for (const Shard& shard : shards) {
    metadata.insert(shard.header.metadata.begin(), shard.header.metadata.end());
    for (const safetensors::TensorInfo& tensor : shard.header.tensors) {
      if (!names.insert(tensor.name).second)
        throw Error(ErrorCode::kSafetensorsMismatch,
                    printable(tensor.name) + " is in two files of the index, " +
                        printable(shard.path) + " is the second",
                    "remove the files of an older save and write the index again");
      specs.push_back({tensor.name, tensor.dtype, tensor.shape});
      count.bytes += tensor.num_bytes();
    }
  }
  for (const Shard& shard : shards) check_tensors(shard);
  count.tensors = specs.size();
  TensorOutput output(disk, path, specs, format, metadata);
  std::vector<std::byte> piece(kPieceBytes);
  for (const Shard& shard : shards) copy_shard(shard, output, piece);
  output.publish();
  count.peak_bytes = piece.size();
  return count;
}

}  // namespace

Result<MergeCount> merge_shards(const fs::path& folder,
                                const fs::path& output,
                                WeightsFormat format,
                                checkpoint::FileSystem& file_system) {
  return to_result([&] { return merge_files(folder, output, format, file_system); });
}

}  // namespace accel::launcher
