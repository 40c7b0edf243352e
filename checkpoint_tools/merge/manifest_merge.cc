#include "checkpoint_tools/merge/manifest_merge.h"

#include <algorithm>
#include <cstddef>
#include <functional>
#include <span>
#include <utility>

#include <fcntl.h>
#include <unistd.h>

#include <accel/error.h>
#include <accel/safetensors.h>

#include "checkpoint_tools/merge/pending_file.h"
#include "checkpoint_tools/merge/tensor_output.h"
#include "runtime/checkpoint/file_ranges.h"
#include "runtime/checkpoint/hashed_file.h"
#include "runtime/printable.h"

namespace accel::launcher {
namespace {

namespace fs = std::filesystem;
using checkpoint::FileDigest;
using checkpoint::FileRange;
using checkpoint::Manifest;

// Takes the bytes of a file piece by piece, each with its place in it.
using Sink = std::function<void(std::uint64_t offset, std::span<const std::byte> bytes)>;

// A file with one hash.
void copy_whole(const fs::path& from, const FileDigest& expected, const Sink& to) {
  checkpoint::InputFile source(from);
  std::vector<std::byte> piece(std::min<std::uint64_t>(expected.bytes, checkpoint::kRangeBytes));
  for (std::uint64_t done = 0; done < expected.bytes;) {
    const std::span part =
        std::span(piece).first(std::min<std::uint64_t>(piece.size(), expected.bytes - done));
    source.read(part);
    to(done, part);
    done += part.size();
  }
  if (const FileDigest found = source.digest(); found != expected)
    throw Error(ErrorCode::kCheckpointIncomplete,
                from.string() + " is damaged: it has the XXH3 hash " +
                    checkpoint::hash_text(found.xxh3) + ", the manifest says " +
                    checkpoint::hash_text(expected.xxh3));
}

// A file that ranks wrote, each with a hash for its ranges.
void copy_ranges(const fs::path& from, const std::vector<FileRange>& ranges, const Sink& to) {
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
    to(range.begin, piece);
  }
}

void copy_verified(const fs::path& from, const Manifest& manifest, const Sink& to) {
  const std::string name = from.filename();
  const auto ranges = manifest.ranges.find(name);
  if (ranges == manifest.ranges.end()) {
    copy_whole(from, manifest.files.at(name), to);
  } else {
    copy_ranges(from, ranges->second, to);
  }
}

// Brings the tensors in pieces of a safetensors file to their places in another one.
class TensorParts {
 public:
  TensorParts(const safetensors::Header& header, TensorOutput& output)
      : tensors_(header.tensors), data_offset_(header.data_offset), output_(output) {
    std::ranges::sort(tensors_, {}, &safetensors::TensorInfo::begin);
  }
  void write(std::uint64_t offset, std::span<const std::byte> bytes) const {
    // In bytes of the data; the header is not copied.
    const std::uint64_t header = offset < data_offset_ ? data_offset_ - offset : 0;
    if (header >= bytes.size()) return;
    bytes = bytes.subspan(header);
    const std::uint64_t begin = offset + header - data_offset_;
    const std::uint64_t end = begin + bytes.size();
    auto tensor = std::ranges::upper_bound(tensors_, begin, {}, &safetensors::TensorInfo::end);
    for (; tensor != tensors_.end() && tensor->begin < end; ++tensor) {
      const std::uint64_t from = std::max(begin, tensor->begin);
      output_.write(output_.place_of(tensor->name) + from - tensor->begin,
                    bytes.subspan(from - begin, std::min(end, tensor->end) - from));
    }
  }

 private:
  std::vector<safetensors::TensorInfo> tensors_;
  std::uint64_t data_offset_;
  TensorOutput& output_;
};

safetensors::Header header_of(const fs::path& path) {
  const checkpoint::InputFile file(path);
  auto header = safetensors::read_header(file.fd());
  if (!header) throw std::move(header.error().while_doing("reading " + printable(path.string())));
  return *std::move(header);
}

std::size_t copy_file(const fs::path& from,
                      const Manifest& manifest,
                      const fs::path& to,
                      checkpoint::FileSystem& disk) {
  PendingFile file(disk, to, manifest.files.at(from.filename()).bytes);
  copy_verified(from, manifest, [&](std::uint64_t offset, std::span<const std::byte> bytes) {
    file.write(offset, bytes);
  });
  file.publish();
  return header_of(to).tensors.size();
}

std::size_t copy_tensors(const fs::path& from,
                         const Manifest& manifest,
                         const fs::path& to,
                         checkpoint::FileSystem& disk) {
  const safetensors::Header header = header_of(from);
  std::vector<safetensors::TensorSpec> specs;
  for (const safetensors::TensorInfo& tensor : header.tensors)
    specs.push_back({tensor.name, tensor.dtype, tensor.shape});
  TensorOutput output(disk, to, specs, WeightsFormat::kTorch, header.metadata);
  const TensorParts parts(header, output);
  copy_verified(from, manifest, [&](std::uint64_t offset, std::span<const std::byte> bytes) {
    parts.write(offset, bytes);
  });
  output.publish();
  return header.tensors.size();
}

MergeCount merge_model_files(const fs::path& folder,
                             const fs::path& output,
                             WeightsFormat format,
                             checkpoint::FileSystem& disk) {
  const Manifest manifest = or_throw(checkpoint::read_manifest(folder));
  or_throw(checkpoint::check_sizes(folder, manifest));
  const std::vector<std::string> names = model_files_of(manifest);
  if (names.empty())
    throw Error(ErrorCode::kCheckpointMismatch,
                folder.string() + " holds no model",
                "name a checkpoint that was saved with a model");
  MergeCount count;
  const auto copy = format == WeightsFormat::kSafetensors ? copy_file : copy_tensors;
  for (std::size_t model = 0; model < names.size(); ++model) {
    const std::string& name = names[model];
    const FileDigest& digest = manifest.files.at(name);
    count.tensors += copy(folder / name, manifest, output / weights_name(format, model), disk);
    count.bytes += digest.bytes;
    count.peak_bytes =
        std::min<std::size_t>(checkpoint::kRangeBytes, std::max(count.peak_bytes, digest.bytes));
  }
  return count;
}

}  // namespace

std::vector<std::string> model_files_of(const Manifest& manifest) {
  std::vector<std::string> names;
  for (std::int64_t i = 0; i < manifest.objects.models; ++i) {
    const std::string name = weights_name(WeightsFormat::kSafetensors, static_cast<std::size_t>(i));
    if (!manifest.files.contains(name)) break;
    names.push_back(name);
  }
  return names;
}

Result<MergeCount> merge_manifest(const fs::path& folder,
                                  const fs::path& output,
                                  WeightsFormat format,
                                  checkpoint::FileSystem& file_system) {
  return to_result([&] { return merge_model_files(folder, output, format, file_system); });
}

}  // namespace accel::launcher
