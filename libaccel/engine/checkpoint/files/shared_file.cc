#include "libaccel/engine/checkpoint/files/shared_file.h"

#include <algorithm>
#include <utility>

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>

#include <accel/error.h>
#include <accel/result.h>

#include "libaccel/engine/checkpoint/files/mapped_tensors.h"
#include "libaccel/engine/checkpoint/files/tensor_file.h"
#include "runtime/checkpoint/hashed_file.h"

namespace accel::checkpoint {
namespace {

namespace st = accel::safetensors;
namespace fs = std::filesystem;

std::span<std::byte> writable_bytes(const at::Tensor& values) {
  return {static_cast<std::byte*>(values.mutable_data_ptr()), values.nbytes()};
}

// The tensors that lie in a range of bytes: "a.weight", or "a.weight and 3 more".
std::string tensors_in(const st::Header& header, std::uint64_t begin, std::uint64_t end) {
  std::string first;
  int others = 0;
  for (const st::TensorInfo& info : header.tensors) {
    if (header.data_offset + info.begin >= end || header.data_offset + info.end <= begin) continue;
    if (first.empty()) {
      first = info.name;
    } else {
      ++others;
    }
  }
  if (first.empty()) return "the header";
  return others == 0 ? first : first + " and " + std::to_string(others) + " more";
}

st::Header verified_header(const InputFile& file,
                           const fs::path& path,
                           const std::vector<FileRange>& ranges) {
  // Parsed before its bytes are verified, which needs their number; a header that is damaged fails in one of the two.
  Result<st::Header> header = st::read_header(file.fd());
  if (!header) {
    throw Error(ErrorCode::kCheckpointIncomplete,
                path.string() + " is damaged: " + header.error().message());
  }
  std::vector<std::byte> bytes(header->data_offset);
  read_verified(
      file.fd(), path, ranges, {{.begin = 0, .to = bytes}}, [](std::uint64_t, std::uint64_t) {
        return std::string("the header");
      });
  return *std::move(header);
}

}  // namespace

SharedFile::SharedFile(std::string name, std::vector<SharedTensor> tensors, st::Metadata metadata)
    : name_(std::move(name)) {
  std::vector<st::TensorSpec> specs;
  for (SharedTensor& tensor : tensors) {
    std::sort(tensor.parts.begin(), tensor.parts.end(), [](const auto& a, const auto& b) {
      return a.begin < b.begin;
    });
    if (tensor.is_divided) divided_.insert(tensor.spec.name);
    parts_.insert_or_assign(tensor.spec.name, std::move(tensor.parts));
    specs.push_back(std::move(tensor.spec));
  }
  layout_ = or_throw(st::plan_layout(std::move(specs), std::move(metadata)));
}

std::uint64_t SharedFile::bytes() const noexcept {
  return layout_.header.data_offset + layout_.header.data_bytes;
}

std::uint64_t SharedFile::header_hash() const {
  return xxh3(std::as_bytes(std::span(layout_.bytes)));
}

std::vector<FileRange> SharedFile::create(FileSystem& file_system,
                                          const fs::path& folder,
                                          int rank) const {
  const fs::path path = folder / name_;
  const UniqueFd fd = file_system.create_file(path);
  file_system.reserve(fd.get(), bytes(), path);
  RangeWriter writer(file_system, fd.get(), path, rank);
  writer.append(0, std::as_bytes(std::span(layout_.bytes)));
  return writer.finish();
}

std::vector<FileRange> SharedFile::write(FileSystem& file_system,
                                         const fs::path& folder,
                                         int rank,
                                         UnsyncedFiles& unsynced) const {
  const fs::path path = folder / name_;
  UniqueFd fd = file_system.open_file(path);
  RangeWriter writer(file_system, fd.get(), path, rank);
  for (const st::TensorInfo& info : layout_.header.tensors) {
    const std::uint64_t place = layout_.header.data_offset + info.begin;
    for (const TensorPart& part : parts_.at(info.name)) {
      const at::Tensor values = plain(part.values);
      writer.append(place + static_cast<std::uint64_t>(part.begin) * values.element_size(),
                    {static_cast<const std::byte*>(values.const_data_ptr()), values.nbytes()});
    }
  }
  std::vector<FileRange> ranges = writer.finish();
  unsynced.add(std::move(fd), path);
  return ranges;
}

std::vector<at::Tensor*> SharedFile::part_values() {
  std::vector<at::Tensor*> values;
  for (auto& [name, parts] : parts_) {
    for (TensorPart& part : parts) values.push_back(&part.values);
  }
  return values;
}

std::vector<TensorPart> add_divided(LoadedParts& loaded,
                                    const st::TensorInfo& info,
                                    const std::vector<PartPlace>& places) {
  const at::Tensor placeholder = allocate(info, at::kMeta);
  std::vector<TensorPart> parts;
  for (const PartPlace& place : places) {
    parts.push_back(
        {place.begin, at::empty({place.numel}, placeholder.options().device(at::kCPU))});
  }
  loaded.tensors.emplace(info.name, placeholder);
  loaded.divided.add(placeholder, parts);
  return parts;
}

void add_loaded(LoadedParts& loaded,
                const st::TensorInfo& info,
                const at::Tensor& tensor,
                const PartsWanted& wanted) {
  const auto places = wanted(info);
  if (!places) {
    loaded.tensors.emplace(info.name, tensor);
    return;
  }
  for (const TensorPart& part : add_divided(loaded, info, *places))
    part.values.copy_(tensor.flatten().narrow(0, part.begin, part.values.numel()));
}

namespace {

// What is wanted of a tensor, as parts of it where it is.
void add_mapped(LoadedParts& loaded,
                const st::TensorInfo& info,
                const at::Tensor& tensor,
                const std::optional<std::vector<PartPlace>>& places) {
  if (!places) {
    loaded.tensors.emplace(info.name, tensor);
    return;
  }
  std::vector<TensorPart> parts;
  for (const PartPlace& place : *places)
    parts.push_back({place.begin, tensor.view({-1}).narrow(0, place.begin, place.numel)});
  const at::Tensor placeholder = allocate(info, at::kMeta);
  loaded.tensors.emplace(info.name, placeholder);
  loaded.divided.add(placeholder, std::move(parts));
}

// The same as read_hashed_file(), of a file that is mapped.
HashedParts map_hashed_file(const std::shared_ptr<const MappedFile>& file,
                            const st::Header& header,
                            const PartsWanted& wanted) {
  HashedParts read;
  RunningHash hash;
  const std::span<const std::byte> bytes = file->bytes();
  for (std::uint64_t done = 0; done < bytes.size();) {
    const std::span piece =
        bytes.subspan(done, std::min<std::uint64_t>(kRangeBytes, bytes.size() - done));
    file->read_ahead(done, piece.size());
    hash.update(piece);
    done += piece.size();
  }
  read.digest = hash.digest();
  file->verify_unchanged();  // before a hash of zeros is called damage
  read.loaded.mapped = file;
  for (const st::TensorInfo& info : header.tensors)
    add_mapped(read.loaded,
               info,
               mapped_tensor(file, info, header.data_offset + info.begin),
               wanted(info));
  return read;
}

// The bytes that are wanted of a file, whose destinations are where they are.
std::vector<WantedBytes> places_in(const MappedFile& file,
                                   const st::TensorInfo& info,
                                   std::uint64_t place,
                                   const std::optional<std::vector<PartPlace>>& places) {
  const auto at = [&](std::uint64_t begin, std::uint64_t bytes) {
    auto* const data = const_cast<std::byte*>(file.bytes().data() + begin);  // NOLINT: not written
    return WantedBytes{begin, {data, bytes}};
  };
  if (!places) return {at(place, info.num_bytes())};
  const std::uint64_t element = allocate(info, at::kMeta).element_size();
  std::vector<WantedBytes> wanted;
  for (const PartPlace& part : *places) {
    wanted.push_back(at(place + static_cast<std::uint64_t>(part.begin) * element,
                        static_cast<std::uint64_t>(part.numel) * element));
  }
  return wanted;
}

// The same as read_ranged_file(), of a file that is mapped. Ranges are compared by as many threads as operators have.
LoadedParts map_ranged_file(const std::shared_ptr<const MappedFile>& file,
                            const fs::path& path,
                            const st::Header& header,
                            const std::vector<FileRange>& ranges,
                            const PartsWanted& wanted) {
  LoadedParts loaded;
  loaded.mapped = file;
  std::vector<WantedBytes> bytes;
  for (const st::TensorInfo& info : header.tensors) {
    const std::uint64_t place = header.data_offset + info.begin;
    const auto places = wanted(info);
    for (const WantedBytes& part : places_in(*file, info, place, places)) bytes.push_back(part);
    add_mapped(loaded, info, mapped_tensor(file, info, place), places);
  }
  const std::vector<FileRange> looked_at = ranges_with(ranges, std::move(bytes));
  const WhatIsAt what_is_at = [&](std::uint64_t begin, std::uint64_t end) {
    return tensors_in(header, begin, end);
  };
  at::parallel_for(0, std::ssize(looked_at), 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i)
      verify_mapped(*file, path, looked_at[static_cast<std::size_t>(i)], ranges, what_is_at);
  });
  return loaded;
}

}  // namespace

HashedParts read_hashed_file(const fs::path& path, const PartsWanted& wanted, LoadedMemory memory) {
  InputFile file(path);
  Result<st::Header> header = st::read_header(file.fd());
  if (!header)
    throw std::move(header).error().while_doing("reading the header of " + path.string());
  if (memory == LoadedMemory::kMapped) {
    if (const auto mapped = MappedFile::map(file, path))
      return map_hashed_file(mapped, *header, wanted);
  }
  HashedParts read;
  std::string front(header->data_offset, '\0');
  file.read(std::as_writable_bytes(std::span(front)));
  for (const st::TensorInfo& info : header->tensors) {
    const at::Tensor tensor = allocate(info);
    file.read(writable_bytes(tensor));
    add_loaded(read.loaded, info, tensor, wanted);
  }
  read.digest = file.digest();
  return read;
}

LoadedParts read_ranged_file(const fs::path& path,
                             const std::vector<FileRange>& ranges,
                             const PartsWanted& wanted,
                             LoadedMemory memory) {
  const InputFile file(path);
  const st::Header header = verified_header(file, path, ranges);
  if (memory == LoadedMemory::kMapped) {
    if (const auto mapped = MappedFile::map(file, path))
      return map_ranged_file(mapped, path, header, ranges, wanted);
  }
  LoadedParts loaded;
  std::vector<WantedBytes> bytes;
  for (const st::TensorInfo& info : header.tensors) {
    const std::uint64_t place = header.data_offset + info.begin;
    const auto places = wanted(info);
    if (!places) {
      const at::Tensor tensor = allocate(info);
      bytes.push_back({place, writable_bytes(tensor)});
      loaded.tensors.emplace(info.name, tensor);
      continue;
    }
    for (const TensorPart& part : add_divided(loaded, info, *places)) {
      const auto offset = static_cast<std::uint64_t>(part.begin) * part.values.element_size();
      bytes.push_back({place + offset, writable_bytes(part.values)});
    }
  }
  read_verified(
      file.fd(), path, ranges, std::move(bytes), [&](std::uint64_t begin, std::uint64_t end) {
        return tensors_in(header, begin, end);
      });
  return loaded;
}

}  // namespace accel::checkpoint
