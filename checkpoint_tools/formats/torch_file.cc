#include "checkpoint_tools/formats/torch_file.h"

#include <optional>
#include <span>
#include <string>
#include <string_view>

#include <accel/error.h>

#include "checkpoint_tools/formats/pickle.h"
#include "checkpoint_tools/formats/pickle_shape.h"
#include "checkpoint_tools/formats/torch_dtype.h"
#include "checkpoint_tools/formats/zip_archive.h"
#include "runtime/printable.h"

namespace accel::launcher {
namespace {

// Of one tensor: some 200 and some 700. A hostile checkpoint has the archive that is largest for each of its chunks.
constexpr TorchFileLimits kLimitsOfTensor{.pickle_bytes = 1 << 20, .directory_bytes = 64 << 10};

// Of a tensor with attributes of Python, as those of FSDP 1: (the function, its class, the arguments, the attributes).
constexpr std::string_view kRebuildFromType = "torch._tensor _rebuild_from_type_v2";

const std::vector<std::string_view>& names_in_tensors() {
  static const std::vector<std::string_view> kAllowed = [] {
    std::vector<std::string_view> names = {kRebuildFromType,
                                           "torch Tensor",
                                           "torch.nn.parameter Parameter",
                                           "torch._utils _rebuild_tensor_v2",
                                           "torch._utils _rebuild_tensor_v3",
                                           "torch._utils _rebuild_parameter",
                                           "torch.storage UntypedStorage",
                                           "torch.storage TypedStorage",
                                           "torch Size",
                                           "collections OrderedDict"};
    for (const TorchDtype& row : torch_dtypes()) {
      names.push_back(row.name);
      if (!row.storage.empty()) names.push_back(row.storage);
    }
    return names;
  }();
  return kAllowed;
}

Error damaged_tensor(const FileSlice& archive, const std::string& what) {
  return Error(ErrorCode::kCheckpointIncomplete,
               "the tensor in " + printable(archive.path) + " at byte " +
                   std::to_string(archive.begin) + " cannot be read: " + what,
               "copy the file again: it is cut short or was changed");
}

// What data.pkl says, before it is compared with the storage.
struct Description {
  SavedTensor tensor;
  std::string key;  // of the storage
};

// ('storage', class, key, device, number of elements)
std::optional<std::string> storage_key(const Pickle& pickle,
                                       PickleNode node,
                                       std::optional<safetensors::Dtype>& dtype) {
  const auto id = pickle.persistent_id(node);
  if (!id || id->size() < 3) return std::nullopt;
  const auto kind = pickle.text((*id)[0]);
  const auto key = pickle.text((*id)[2]);
  const auto storage_class = pickle.name((*id)[1]);
  if (kind != "storage" || !key || !storage_class) return std::nullopt;
  dtype = dtype_of(*storage_class);
  return std::string(*key);
}

bool is_no_empty_dict(const Pickle& pickle, PickleNode node) {
  const auto entries = pickle.entries(node);
  return pickle.kind(node) != PickleKind::kNone && (!entries || !entries->empty());
}

struct RebuildCall {
  std::optional<std::string_view> made_by;
  std::span<const PickleNode> arguments;
};

// What makes the tensor within a parameter or one with attributes, which are left out.
RebuildCall rebuild_call(const Pickle& pickle, PickleNode node) {
  if (pickle.made_by(node) == "torch._utils _rebuild_parameter" && !pickle.arguments(node).empty())
    node = pickle.arguments(node)[0];
  const RebuildCall call{pickle.made_by(node), pickle.arguments(node)};
  if (call.made_by != kRebuildFromType || call.arguments.size() < 3) return call;
  const auto arguments = pickle.sequence(call.arguments[2]);
  return {pickle.name(call.arguments[0]), arguments ? *arguments : std::span<const PickleNode>()};
}

Result<Description> description_of(const FileSlice& archive,
                                   const Pickle& pickle,
                                   PickleNode node) {
  const auto [made_by, arguments] = rebuild_call(pickle, node);
  const bool has_dtype = made_by == "torch._utils _rebuild_tensor_v3";
  if (!has_dtype && made_by != "torch._utils _rebuild_tensor_v2")
    return damaged_tensor(archive, "data.pkl has something else than a tensor");
  if (arguments.size() < (has_dtype ? 7u : 4u))
    return damaged_tensor(archive, "an argument is missing");

  // Conjugate and negative views are said by an argument behind the others.
  const std::size_t views = has_dtype ? 7 : 6;
  if (arguments.size() > views && is_no_empty_dict(pickle, arguments[views]))
    return Error(ErrorCode::kUnsupported,
                 "the tensor in " + printable(archive.path) + " at byte " +
                     std::to_string(archive.begin) + " is a conjugate or negative view",
                 "call resolve_conj() and resolve_neg() before it is saved");

  std::optional<safetensors::Dtype> dtype;
  const auto key = storage_key(pickle, arguments[0], dtype);
  const auto first = pickle.integer(arguments[1]);
  auto shape = sizes_of(pickle, arguments[2]);
  auto strides = sizes_of(pickle, arguments[3]);
  if (!key || !first || *first < 0 || !shape || !strides || shape->size() != strides->size())
    return damaged_tensor(archive, "its storage, size or strides are none");
  if (has_dtype) dtype = dtype_of(pickle.name(arguments[6]).value_or(""));
  if (!dtype)
    return Error(ErrorCode::kUnsupported,
                 "the tensor in " + printable(archive.path) + " at byte " +
                     std::to_string(archive.begin) + " has a dtype that safetensors has not",
                 "convert it before it is saved");
  return Description{.tensor = {.dtype = *dtype,
                                .shape = *std::move(shape),
                                .strides = *std::move(strides),
                                .first = static_cast<std::uint64_t>(*first),
                                .storage = {}},
                     .key = *key};
}

// Whether every element is within a storage of `bytes`.
bool is_within(const SavedTensor& tensor, std::uint64_t bytes) {
  const std::uint64_t elements = bytes * 8 / safetensors::dtype_bits(tensor.dtype);
  std::uint64_t last = tensor.first;
  for (std::size_t i = 0; i < tensor.shape.size(); ++i) {
    if (tensor.shape[i] == 0) return true;
    std::uint64_t reach = 0;
    if (__builtin_mul_overflow(tensor.shape[i] - 1, tensor.strides[i], &reach) ||
        __builtin_add_overflow(last, reach, &last))
      return false;
  }
  return last < elements;
}

// "archive/data.pkl" -> "archive/".
std::optional<std::string> folder_of(const ZipArchive& archive) {
  constexpr std::string_view kName = "/data.pkl";
  for (const ZipArchive::Entry& entry : archive.entries())
    if (entry.name.ends_with(kName) && entry.name.find('/') == entry.name.size() - kName.size())
      return entry.name.substr(0, entry.name.size() - kName.size() + 1);
  return std::nullopt;
}

Result<std::string> entry_text(const ZipArchive& archive,
                               const std::string& name,
                               std::uint64_t most) {
  const ZipArchive::Entry* entry = archive.find(name);
  if (entry == nullptr) return std::string();
  const auto slice = archive.bytes_of(*entry);
  if (!slice) return slice.error();
  if (slice->size > most)
    return damaged_tensor(*slice, name + " has " + std::to_string(slice->size) + " bytes");
  return slice->text(0, slice->size);
}

}  // namespace

Result<TorchFile> TorchFile::open(const FileSlice& archive,
                                  std::span<const std::string_view> more_names,
                                  const TorchFileLimits& limits) {
  auto zip = ZipArchive::open(archive, limits.directory_bytes);
  if (!zip) return std::move(zip).error();
  TorchFile file;
  file.archive_ = archive;
  file.zip_ = *std::move(zip);
  const auto folder = folder_of(file.zip_);
  if (!folder) return damaged_tensor(archive, "it has no data.pkl");
  file.folder_ = *folder;
  const auto order = entry_text(file.zip_, *folder + "byteorder", 16);
  if (!order) return order.error();
  if (!order->empty() && *order != "little")
    return Error(ErrorCode::kUnsupported,
                 "what " + printable(archive.path) + " holds at byte " +
                     std::to_string(archive.begin) + " has the byte order " + printable(*order),
                 "convert it with PyTorch on a machine of the kind that saved it");
  auto bytes = entry_text(file.zip_, *folder + "data.pkl", limits.pickle_bytes);
  if (!bytes) return std::move(bytes).error();
  file.bytes_ = std::make_unique<const std::string>(*std::move(bytes));
  std::vector<std::string_view> names = names_in_tensors();
  names.insert(names.end(), more_names.begin(), more_names.end());
  auto pickle = read_pickle(*file.bytes_, names);
  if (!pickle) {
    Error error = std::move(pickle).error();
    return std::move(error.while_doing("reading " + printable(archive.path) + " at byte " +
                                       std::to_string(archive.begin)));
  }
  file.pickle_ = *std::move(pickle);
  const std::string data = *folder + "data/";
  const auto& entries = file.zip_.entries();
  for (std::size_t i = 0; i < entries.size(); ++i)
    if (entries[i].name.starts_with(data))
      file.storages_.emplace(entries[i].name.substr(data.size()), i);
  return file;
}

bool TorchFile::is_tensor(PickleNode node) const {
  const auto made_by = pickle_.made_by(node);
  return made_by == "torch._utils _rebuild_tensor_v2" ||
         made_by == "torch._utils _rebuild_tensor_v3" || made_by == kRebuildFromType ||
         made_by == "torch._utils _rebuild_parameter";
}

Result<SavedTensor> TorchFile::tensor(PickleNode node) const {
  auto description = description_of(archive_, pickle_, node);
  if (!description) return description.error();
  const auto data = storages_.find(description->key);
  if (data == storages_.end()) return damaged_tensor(archive_, "its storage is missing");
  const auto storage = zip_.bytes_of(zip_.entries()[data->second]);
  if (!storage) return storage.error();
  description->tensor.storage = *storage;
  if (!is_within(description->tensor, storage->size))
    return damaged_tensor(
        archive_, "it reaches beyond its storage of " + std::to_string(storage->size) + " bytes");
  return std::move(description->tensor);
}

Result<SavedTensor> read_saved_tensor(const FileSlice& archive) {
  const auto file = TorchFile::open(archive, {}, kLimitsOfTensor);
  if (!file) return file.error();
  return file->tensor(file->pickle().root());
}

bool is_row_major(const SavedTensor& tensor) noexcept {
  std::uint64_t expected = 1;
  for (std::size_t i = tensor.shape.size(); i-- > 0;) {
    if (tensor.shape[i] == 0) return true;
    if (tensor.shape[i] != 1 && tensor.strides[i] != expected) return false;
    expected *= tensor.shape[i];
  }
  return true;
}

}  // namespace accel::launcher
