#include "launcher/merge/manifest_merge.h"

#include <algorithm>
#include <cstddef>
#include <span>

#include <fcntl.h>
#include <unistd.h>

#include <accel/error.h>
#include <accel/safetensors.h>

#include "launcher/merge/pending_file.h"
#include "runtime/checkpoint/file_ranges.h"
#include "runtime/checkpoint/hashed_file.h"
#include "runtime/printable.h"

namespace accel::launcher {
namespace {

namespace fs = std::filesystem;
using checkpoint::FileDigest;
using checkpoint::FileRange;
using checkpoint::Manifest;

constexpr std::size_t kPieceBytes = checkpoint::kRangeBytes;

// A file with one hash.
void copy_whole(const fs::path& from, const FileDigest& expected, PendingFile& to) {
  checkpoint::InputFile source(from);
  std::vector<std::byte> piece(std::min<std::uint64_t>(expected.bytes, kPieceBytes));
  for (std::uint64_t done = 0; done < expected.bytes;) {
    const std::span part =
        std::span(piece).first(std::min<std::uint64_t>(piece.size(), expected.bytes - done));
    source.read(part);
    to.write(done, part);
    done += part.size();
  }
  if (const FileDigest found = source.digest(); found != expected)
    throw Error(ErrorCode::kCheckpointIncomplete,
                from.string() + " is damaged: it has the XXH3 hash " +
                    checkpoint::hash_text(found.xxh3) + ", the manifest says " +
                    checkpoint::hash_text(expected.xxh3));
}

// A file that ranks wrote, each with a hash for its ranges.
void copy_ranges(const fs::path& from, const std::vector<FileRange>& ranges, PendingFile& to) {
  checkpoint::InputFile source(from);
  const auto header = or_throw(safetensors::read_header(source.fd()));
  const auto tensors_in = [&](std::uint64_t begin, std::uint64_t end) -> std::string {
    for (const safetensors::TensorInfo& tensor : header.tensors)
      if (header.data_offset + tensor.begin < end && header.data_offset + tensor.end > begin)
        return "in " + tensor.name;
    return "the header";
  };
  std::vector<std::byte> piece;
  for (const FileRange& range : ranges) {
    piece.resize(range.bytes);
    checkpoint::read_verified(source.fd(), from, {range}, {{range.begin, piece}}, tensors_in);
    to.write(range.begin, piece);
  }
}

std::size_t tensors_in(const fs::path& path) {
  const checkpoint::InputFile file(path);
  return or_throw(safetensors::read_header(file.fd())).tensors.size();
}

MergeCount merge(const fs::path& folder, const fs::path& output, checkpoint::FileSystem& disk) {
  const Manifest manifest = or_throw(checkpoint::read_manifest(folder));
  or_throw(checkpoint::check_sizes(folder, manifest));
  const std::vector<std::string> names = model_files_of(manifest);
  if (names.empty())
    throw Error(ErrorCode::kCheckpointMismatch,
                folder.string() + " holds no model",
                "name a checkpoint that was saved with a model");
  MergeCount count;
  for (const std::string& name : names) {
    const FileDigest& digest = manifest.files.at(name);
    PendingFile to(disk, output / name, digest.bytes);
    const auto ranges = manifest.ranges.find(name);
    if (ranges == manifest.ranges.end()) {
      copy_whole(folder / name, digest, to);
    } else {
      copy_ranges(folder / name, ranges->second, to);
    }
    to.publish();
    count.tensors += tensors_in(output / name);
    count.bytes += digest.bytes;
    count.peak_bytes = std::min<std::size_t>(kPieceBytes, std::max(count.peak_bytes, digest.bytes));
  }
  return count;
}

}  // namespace

std::vector<std::string> model_files_of(const Manifest& manifest) {
  std::vector<std::string> names;
  for (std::int64_t i = 0; i < manifest.objects.models; ++i) {
    const std::string name = (i == 0 ? "model" : "model_" + std::to_string(i)) + ".safetensors";
    if (!manifest.files.contains(name)) break;
    names.push_back(name);
  }
  return names;
}

Result<MergeCount> merge_manifest(const fs::path& folder,
                                  const fs::path& output,
                                  checkpoint::FileSystem& file_system) {
  return to_result([&] { return merge(folder, output, file_system); });
}

}  // namespace accel::launcher
