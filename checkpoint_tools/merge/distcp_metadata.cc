// The shape of `.metadata`, a pickle of dataclasses:
//
//   Metadata  state_dict_metadata  {key: TensorStorageMetadata{properties, size, chunks} or BytesStorageMetadata}
//             planner_data         {key: path in the state dict, a tuple of texts and numbers}; not always there
//             storage_data         {MetadataIndex{fqn, offset}: _StorageInfo{relative_path, offset, length}}
//
// The state of TensorProperties is a tuple whose first is the dtype. Versions before 2.1 of PyTorch kept these classes in other
// modules; their names are allowed too.
//
// A pickle can name one value many times over: a list of a million chunks as that of a million tensors takes a few MB. So all
// that is kept here counts, and may be no more than what PyTorch writes so many bytes for; texts that are looked up are compared by
// number, so that a long one is read once.

#include "checkpoint_tools/merge/distcp_metadata.h"

#include <algorithm>
#include <cerrno>
#include <set>
#include <unordered_map>
#include <utility>

#include <fcntl.h>
#include <sys/stat.h>

#include <accel/error.h>

#include "checkpoint_tools/formats/file_slice.h"
#include "checkpoint_tools/formats/pickle.h"
#include "checkpoint_tools/formats/pickle_shape.h"
#include "checkpoint_tools/formats/torch_dtype.h"
#include "checkpoint_tools/merge/box.h"
#include "runtime/printable.h"
#include "runtime/unique_fd.h"

namespace accel::launcher {
namespace {

constexpr std::uint64_t kMostMetadataBytes = std::uint64_t{256} << 20;  // a million chunks: 100 MB
// What is kept of metadata that PyTorch wrote is three times its size.
constexpr std::uint64_t kMostKeptPerByte = 8;
constexpr std::uint64_t kFewKept = std::uint64_t{1} << 20;
// A corner takes 16 bytes of memory; a chunk some 100 of metadata, and has 2^d corners.
constexpr std::size_t kFewCorners = 1 << 16;
constexpr std::uint64_t kBytesPerCorner = 2;
constexpr std::size_t kMostNameBytes = 255;  // of a file
constexpr std::uint64_t kTableEntry = 48;    // of a hash table, besides key and value

const std::vector<std::string_view>& names_in_metadata() {
  static const std::vector<std::string_view> kAllowed = [] {
    std::vector<std::string_view> names = {
        "torch.distributed.checkpoint.metadata Metadata",
        "torch.distributed.checkpoint.metadata MetadataIndex",
        "torch.distributed.checkpoint.metadata TensorStorageMetadata",
        "torch.distributed.checkpoint.metadata BytesStorageMetadata",
        "torch.distributed.checkpoint.metadata ChunkStorageMetadata",
        "torch.distributed.checkpoint.metadata TensorProperties",
        "torch.distributed.checkpoint.metadata StorageMeta",
        "torch.distributed.checkpoint.metadata _MEM_FORMAT_ENCODING",
        "torch.distributed.checkpoint.filesystem _StorageInfo",
        "torch.distributed._shard.sharded_tensor.metadata TensorProperties",
        "torch.distributed._shard.sharded_tensor.metadata MEM_FORMAT_ENCODING",
        "torch.serialization _get_layout",
        "torch Size",
        "collections OrderedDict",
        "builtins getattr",     // how Python 3.11 writes a member of an enumeration
        "__builtin__ getattr",  // the same with protocol 2
        "builtins set",
        "__builtin__ set",
        "pathlib PosixPath",
        "pathlib PurePosixPath",
        "pathlib WindowsPath",
        "pathlib PureWindowsPath",
        "pathlib._local PosixPath",
        "pathlib._local WindowsPath",
    };
    for (const TorchDtype& row : torch_dtypes()) names.push_back(row.name);
    for (const std::string_view name : {"torch complex32", "torch complex128"})
      names.push_back(name);
    return names;
  }();
  return kAllowed;
}

Error damaged_metadata(const std::string& what) {
  return Error(ErrorCode::kCheckpointIncomplete,
               "the metadata is not what torch.distributed.checkpoint writes: " + what,
               "copy the checkpoint again: it is cut short or was changed");
}

// Where a chunk was saved goes by the number of its tensor's name and its place in it.
std::string place_key(std::uint32_t name, const std::vector<std::uint64_t>& offsets) {
  std::string key(reinterpret_cast<const char*>(&name), sizeof name);
  key.append(reinterpret_cast<const char*>(offsets.data()), offsets.size() * sizeof offsets[0]);
  return key;
}

struct Place {
  std::string_view file;
  std::uint64_t begin = 0;
  std::uint64_t bytes = 0;
};

class MetadataReader {
 public:
  // `bytes`: of the pickle.
  MetadataReader(const Pickle& pickle, std::uint64_t bytes)
      : pickle_(pickle), bytes_(bytes), left_(kFewKept + kMostKeptPerByte * bytes) {}

  Result<DistcpMetadata> read() {
    if (pickle_.made_by(pickle_.root()) != "torch.distributed.checkpoint.metadata Metadata")
      return damaged_metadata("it is no Metadata");
    if (auto placed = read_places(); !placed) return placed.error();
    if (auto paths = read_paths(); !paths) return paths.error();
    const auto states = entries_of("state_dict_metadata");
    if (!states) return damaged_metadata("state_dict_metadata is no dict");
    for (std::size_t i = 0; i + 1 < states->size(); i += 2) {
      const auto key = pickle_.text((*states)[i]);
      if (!key) return damaged_metadata("a key of state_dict_metadata is no text");
      if (auto done = read_state((*states)[i], *key, (*states)[i + 1]); !done) {
        Error error = done.error();
        return std::move(error.while_doing("reading what it says of " + printable(*key)));
      }
    }
    if (auto named = give_names(); !named) return named.error();
    return std::move(result_);
  }

 private:
  std::optional<std::span<const PickleNode>> entries_of(std::string_view field) const {
    const auto node = pickle_.field(pickle_.root(), field);
    return node ? pickle_.entries(*node) : std::nullopt;
  }

  // Counts what is going to be kept. False: it is more than metadata of this size describes.
  [[nodiscard]] bool keep(std::uint64_t bytes) {
    if (bytes > left_) return false;
    left_ -= bytes;
    return true;
  }
  [[nodiscard]] Error too_much() const {
    return damaged_metadata(
        "its " + std::to_string(bytes_) +
        " bytes name the same values over and over: what they describe would take more "
        "than " +
        std::to_string(kFewKept + kMostKeptPerByte * bytes_) + " bytes of memory");
  }

  // The same for the same text. The text of one value is read once.
  std::uint32_t number_of(PickleNode node, std::string_view text) {
    const auto [known, is_new] = numbers_by_node_.try_emplace(node, 0);
    if (is_new) {
      const auto next = static_cast<std::uint32_t>(numbers_by_text_.size());
      known->second = numbers_by_text_.try_emplace(text, next).first->second;
    }
    return known->second;
  }

  Result<void> read_places() {
    const auto places = entries_of("storage_data");
    if (!places) return damaged_metadata("storage_data is no dict");
    for (std::size_t i = 0; i + 1 < places->size(); i += 2) {
      const PickleNode index = (*places)[i];
      const PickleNode info = (*places)[i + 1];
      const auto name = pickle_.field(index, "fqn");
      const auto key = name ? pickle_.text(*name) : std::nullopt;
      if (!key) return damaged_metadata("a key of storage_data has no name");
      std::vector<std::uint64_t> offsets;
      if (const auto offset = pickle_.field(index, "offset"); offset && !is_none(*offset)) {
        auto sizes = sizes_of(pickle_, *offset);
        if (!sizes)
          return damaged_metadata("the place of a chunk of " + printable(*key) + " is none");
        offsets = *std::move(sizes);
      }
      auto place = read_place(info);
      if (!place) return place.error();
      std::string at = place_key(number_of(*name, *key), offsets);
      if (!keep(kTableEntry + sizeof at + at.size() + sizeof *place)) return too_much();
      places_.emplace(std::move(at), *place);
    }
    return {};
  }

  Result<Place> read_place(PickleNode info) const {
    const auto file = text_field(info, "relative_path");
    const auto begin = integer_field(info, "offset");
    const auto bytes = integer_field(info, "length");
    if (!file || !begin || !bytes || *begin < 0 || *bytes < 0)
      return damaged_metadata("an entry of storage_data gives no file, offset and length");
    if (file->empty() || file->size() > kMostNameBytes || *file == "." || *file == ".." ||
        file->find('/') != std::string_view::npos || file->find('\0') != std::string_view::npos)
      return damaged_metadata("the file " + printable(file->substr(0, kMostNameBytes)) +
                              " is no name of a file beside it");
    if (const auto through = pickle_.field(info, "transform_descriptors")) {
      const auto extensions = pickle_.sequence(*through);
      if (!is_none(*through) && (!extensions || !extensions->empty()))
        return Error(
            ErrorCode::kUnsupported,
            "what is in " + printable(*file) +
                " was written through extensions of "
                "torch.distributed.checkpoint (compression, encryption)",
            "merge it with `accelerate merge-weights`, where the extensions are installed");
    }
    return Place{.file = *file,
                 .begin = static_cast<std::uint64_t>(*begin),
                 .bytes = static_cast<std::uint64_t>(*bytes)};
  }

  // planner_data, when it is there.
  Result<void> read_paths() {
    const auto planned = entries_of("planner_data");
    if (!planned) return {};
    for (std::size_t i = 0; i + 1 < planned->size(); i += 2) {
      const auto key = pickle_.text((*planned)[i]);
      const auto steps = pickle_.sequence((*planned)[i + 1]);
      if (!key || !steps || steps->empty())
        return damaged_metadata("a path of planner_data is none");
      DistcpPath path;
      for (const PickleNode step : *steps) {
        const auto text = pickle_.text(step);
        const auto number = pickle_.integer(step);
        if (!text && !number)
          return damaged_metadata("a step in the path of " + printable(*key) + " is none");
        path.push_back(text ? std::string(*text) : std::to_string(*number));
        if (!keep(sizeof(std::string) + path.back().size())) return too_much();
      }
      if (!keep(kTableEntry + sizeof path + key->size())) return too_much();
      paths_.emplace(std::string(*key), std::move(path));
    }
    return {};
  }

  Result<void> read_state(PickleNode key_node, std::string_view key, PickleNode node) {
    const auto found = paths_.find(std::string(key));
    const DistcpPath path = found == paths_.end() ? DistcpPath{std::string(key)} : found->second;
    std::uint64_t kept = sizeof path + 2 * sizeof(std::string);  // and the joined name
    for (const std::string& step : path) kept += sizeof step + 2 * step.size();
    if (!keep(kept)) return too_much();
    const auto made_by = pickle_.made_by(node);
    if (made_by == "torch.distributed.checkpoint.metadata BytesStorageMetadata") {
      return read_value(key_node, key, path);
    }
    if (made_by != "torch.distributed.checkpoint.metadata TensorStorageMetadata")
      return damaged_metadata("it is neither a tensor nor bytes");
    auto tensor = read_tensor(key_node, key, node);
    if (!tensor) return tensor.error();
    tensor->path = path;
    result_.tensors.push_back(*std::move(tensor));
    return {};
  }

  Result<void> read_value(PickleNode key_node, std::string_view key, const DistcpPath& path) {
    DistcpValue value{.name = {}, .path = path, .file = {}};
    const auto place = places_.find(place_key(number_of(key_node, key), {}));
    if (!keep(sizeof value + kMostNameBytes)) return too_much();
    if (place != places_.end()) {
      value.file = place->second.file;
      value.begin = place->second.begin;
      value.bytes = place->second.bytes;
    }
    result_.other_values.push_back(std::move(value));
    return {};
  }

  Result<DistcpTensor> read_tensor(PickleNode key_node, std::string_view key, PickleNode node) {
    DistcpTensor tensor;
    if (!keep(sizeof tensor)) return too_much();
    const auto size = pickle_.field(node, "size");
    auto shape = size ? sizes_of(pickle_, *size) : std::nullopt;
    if (!shape) return damaged_metadata("its size is none");
    tensor.shape = *std::move(shape);
    const auto dtype = read_dtype(node);
    if (!dtype) return dtype.error();
    tensor.dtype = *dtype;
    if (const auto bytes = safetensors::tensor_bytes(key, tensor.dtype, tensor.shape); !bytes)
      return damaged_metadata(bytes.error().message());
    const auto list = pickle_.field(node, "chunks");
    const auto chunks = list ? pickle_.sequence(*list) : std::nullopt;
    if (!chunks) return damaged_metadata("it has no chunks");
    const std::uint32_t name = number_of(key_node, key);
    const std::uint64_t kept =
        sizeof(DistcpChunk) + 2 * tensor.shape.size() * sizeof(std::uint64_t);
    for (const PickleNode chunk : *chunks) {
      if (!keep(kept)) return too_much();
      auto read = read_chunk(name, tensor.shape.size(), chunk);
      if (!read) return read.error();
      tensor.chunks.push_back(*std::move(read));
    }
    if (auto covered = check_cover(tensor); !covered) return covered.error();
    return tensor;
  }

  Result<safetensors::Dtype> read_dtype(PickleNode node) const {
    const auto properties = pickle_.field(node, "properties");
    if (!properties || pickle_.kind(*properties) != PickleKind::kObject)
      return damaged_metadata("it has no properties");
    std::optional<PickleNode> dtype;
    if (const auto state = pickle_.state(*properties)) {
      const auto values = pickle_.sequence(*state);
      dtype = values && !values->empty() ? values->front() : pickle_.field(*state, "dtype");
    }
    const auto name = dtype ? pickle_.name(*dtype) : std::nullopt;
    if (!name) return damaged_metadata("it has no dtype");
    const auto known = dtype_of(*name);
    if (!known)
      return Error(ErrorCode::kUnsupported,
                   "a tensor of " + printable(*name) + " has no place in a safetensors file",
                   "convert it before it is saved, or leave it out of the state dict");
    return *known;
  }

  Result<DistcpChunk> read_chunk(std::uint32_t name, std::size_t dims, PickleNode node) const {
    const auto offsets = pickle_.field(node, "offsets");
    const auto sizes = pickle_.field(node, "sizes");
    auto begin = offsets ? sizes_of(pickle_, *offsets) : std::nullopt;
    auto extent = sizes ? sizes_of(pickle_, *sizes) : std::nullopt;
    if (!begin || !extent || begin->size() != dims || extent->size() != dims)
      return damaged_metadata("a chunk has no offsets and sizes of its dimensions");
    const auto place = places_.find(place_key(name, *begin));
    if (place == places_.end())
      return damaged_metadata("storage_data does not say where a chunk is");
    return DistcpChunk{.offsets = *std::move(begin),
                       .sizes = *std::move(extent),
                       .file = std::string(place->second.file),
                       .begin = place->second.begin,
                       .bytes = place->second.bytes};
  }

  // Each element is in one chunk.
  [[nodiscard]] Result<void> check_cover(const DistcpTensor& tensor) const {
    std::vector<Box> boxes;
    std::uint64_t covered = 0;
    for (const DistcpChunk& chunk : tensor.chunks) {
      Box box{.offsets = chunk.offsets, .sizes = chunk.sizes};
      if (!is_within(box, tensor.shape)) return damaged_metadata("a chunk is not within it");
      if (__builtin_add_overflow(covered, *volume(box.sizes), &covered)) return overlap();
      if (*volume(box.sizes) > 0) boxes.push_back(std::move(box));
    }
    const std::uint64_t all = *volume(tensor.shape);
    if (covered < all)
      return damaged_metadata("its chunks have " + std::to_string(covered) + " of its " +
                              std::to_string(all) + " elements");
    if (covered > all) return overlap();
    const auto is_covered = cover_exactly(
        boxes, tensor.shape, std::min(kMostCorners, kFewCorners + bytes_ / kBytesPerCorner));
    if (!is_covered)
      return Error(
          ErrorCode::kUnsupported,
          "a tensor is divided in more dimensions, or into more chunks, than can be compared",
          "save it with fewer chunks, along fewer dimensions");
    if (!*is_covered) return overlap();
    return {};
  }
  static Error overlap() { return damaged_metadata("two of its chunks overlap"); }

  // HF Accelerate's rule: {"model": {...}} is taken for what is in it.
  [[nodiscard]] bool has_one_root() const {
    std::set<std::string_view> roots;
    bool is_nested = true;
    const auto add_root = [&](const DistcpPath& path) {
      is_nested = is_nested && path.size() > 1;
      roots.insert(path.front());
    };
    for (const DistcpTensor& tensor : result_.tensors) add_root(tensor.path);
    for (const DistcpValue& value : result_.other_values) add_root(value.path);
    return is_nested && roots.size() == 1;
  }

  Result<void> give_names() {
    const std::size_t skipped = has_one_root() ? 1 : 0;
    const auto joined = [&](const DistcpPath& path) {
      std::string name;
      for (std::size_t i = skipped; i < path.size(); ++i)
        name += (i > skipped ? "." : "") + path[i];
      return name;
    };
    std::set<std::string> names;
    for (DistcpTensor& tensor : result_.tensors) {
      tensor.name = joined(tensor.path);
      if (!names.insert(tensor.name).second)
        return damaged_metadata("two tensors would have the name " + printable(tensor.name));
    }
    for (DistcpValue& value : result_.other_values) value.name = joined(value.path);
    return {};
  }

  [[nodiscard]] bool is_none(PickleNode node) const {
    return pickle_.kind(node) == PickleKind::kNone;
  }
  [[nodiscard]] std::optional<std::string_view> text_field(PickleNode node,
                                                           std::string_view key) const {
    const auto value = pickle_.field(node, key);
    return value ? pickle_.text(*value) : std::nullopt;
  }
  [[nodiscard]] std::optional<std::int64_t> integer_field(PickleNode node,
                                                          std::string_view key) const {
    const auto value = pickle_.field(node, key);
    return value ? pickle_.integer(*value) : std::nullopt;
  }

  const Pickle& pickle_;
  std::uint64_t bytes_;
  std::uint64_t left_;  // bytes that may still be kept
  std::unordered_map<PickleNode, std::uint32_t> numbers_by_node_;
  std::unordered_map<std::string_view, std::uint32_t> numbers_by_text_;
  std::unordered_map<std::string, Place> places_;
  std::unordered_map<std::string, DistcpPath> paths_;
  DistcpMetadata result_;
};

}  // namespace

Result<DistcpMetadata> parse_distcp_metadata(std::string_view bytes) {
  const auto pickle = read_pickle(bytes, names_in_metadata());
  if (!pickle) return pickle.error();
  return MetadataReader(*pickle, bytes.size()).read();
}

Result<DistcpMetadata> read_distcp_metadata(const std::filesystem::path& folder) {
  const std::string path = (folder / kDistcpMetadataName).string();
  const UniqueFd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  struct stat status {};
  if (!file || ::fstat(file.get(), &status) != 0)
    return Error(ErrorCode::kFileIo, "cannot read " + printable(path) + ": " + errno_text(errno));
  if (!S_ISREG(status.st_mode) || static_cast<std::uint64_t>(status.st_size) > kMostMetadataBytes)
    return damaged_metadata(printable(path) + " is no file of at most " +
                            std::to_string(kMostMetadataBytes) + " bytes");
  const FileSlice all{.fd = file.get(),
                      .path = path,
                      .begin = 0,
                      .size = static_cast<std::uint64_t>(status.st_size)};
  const auto bytes = all.text(0, all.size);
  if (!bytes) return bytes.error();
  auto metadata = parse_distcp_metadata(*bytes);
  if (!metadata) {
    Error error = metadata.error();
    return std::move(error.while_doing("reading " + printable(path)));
  }
  return metadata;
}

}  // namespace accel::launcher
