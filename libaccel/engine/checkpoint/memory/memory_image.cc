#include "libaccel/engine/checkpoint/memory/memory_image.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include <nlohmann/json.hpp>

#include <accel/error.h>
#include <accel/result.h>
#include <accel/version.h>

#include "libaccel/engine/checkpoint/files/tensor_file.h"

namespace accel::checkpoint {
namespace {

namespace st = accel::safetensors;
using nlohmann::json;

// Metadata: the table, the manifest, and texts by the names of their files behind a prefix.
constexpr const char* kTableKey = "table";
constexpr const char* kManifestKey = "manifest";
constexpr const char* kNewestOnDiskKey = "newest_on_disk";
constexpr const char* kTextPrefix = "text:";

// Collects entries, and what they are:
//   {"model.safetensors": {"whole": {tensor: entry},
//                          "divided": {tensor: {"dtype": "F32", "shape": [4, 2], "parts": [[begin, entry]]}}}}
class ImagePlan {
 public:
  explicit ImagePlan(const SaveContent& content) {
    for (const auto& [name, text] : content.texts) metadata[kTextPrefix + name] = text;
    for (const SaveContent::TensorFile& file : content.files) {
      json& whole = table_[file.name]["whole"] = json::object();
      for (const auto& [name, tensor] : file.tensors) whole[name] = add(tensor);
    }
    for (const SharedFile& file : content.shared) add_shared(file);
    metadata[kTableKey] = table_.dump();
  }

  std::map<std::string, std::string> metadata;
  std::vector<st::TensorSpec> specs;
  std::vector<at::Tensor> tensors;

 private:
  void add_shared(const SharedFile& file) {
    json& entry = table_[file.name()] = {{"whole", json::object()}, {"divided", json::object()}};
    for (const st::TensorInfo& info : file.tensors()) {
      const std::vector<TensorPart>& parts = file.parts_of(info.name);
      if (!file.is_divided(info.name)) {
        // Only the first rank of the node has it.
        for (const TensorPart& part : parts) entry["whole"][info.name] = add(part.values);
        continue;
      }
      json list = json::array();
      for (const TensorPart& part : parts) list.push_back({part.begin, add(part.values)});
      entry["divided"][info.name] = {
          {"dtype", st::dtype_name(info.dtype)}, {"shape", info.shape}, {"parts", std::move(list)}};
    }
  }

  // Returns its number.
  std::uint64_t add(const at::Tensor& tensor) {
    const std::uint64_t number = tensors.size();
    specs.push_back(spec_of(std::to_string(number), tensor));
    tensors.push_back(tensor);
    return number;
  }

  json table_ = json::object();
};

[[noreturn]] void refuse_image(const std::string& why) {
  throw Error(ErrorCode::kCheckpointIncomplete, "the in-memory checkpoint is damaged: " + why);
}

}  // namespace

MemoryImage::MemoryImage(const SaveContent& content,
                         const Manifest& manifest,
                         const DiskMark& newest_on_disk) {
  ImagePlan plan(content);
  plan.metadata[kNewestOnDiskKey] = json{newest_on_disk.number, newest_on_disk.generation}.dump();
  plan.metadata[kManifestKey] =
      encode_manifest(manifest, {.accel = accel::version(), .torch = torch_version()});
  tensors_ = std::move(plan.tensors);
  layout_ = or_throw(st::plan_layout(std::move(plan.specs), std::move(plan.metadata)));
}

std::uint64_t MemoryImage::bytes() const noexcept {
  return layout_.header.data_offset + layout_.header.data_bytes;
}

void MemoryImage::write(SlotWriter& slot) const {
  slot.append(std::as_bytes(std::span(layout_.bytes)));
  for (const st::TensorInfo& info : layout_.header.tensors) {
    const at::Tensor values = plain(tensors_.at(std::stoull(info.name)));
    slot.append({static_cast<const std::byte*>(values.const_data_ptr()), values.nbytes()});
  }
}

MemorySource::Image MemorySource::parse(std::span<const std::byte> bytes) {
  const auto length =
      st::header_length(bytes.first(std::min(bytes.size(), st::kPrefixBytes)), bytes.size());
  if (!length) refuse_image(length.error().message());
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()) + st::kPrefixBytes,
                              static_cast<std::size_t>(*length));
  Image image{.bytes = bytes};
  auto header = st::parse_header(text, bytes.size());
  if (!header) refuse_image(header.error().message());
  image.header = *std::move(header);
  for (const st::TensorInfo& info : image.header.tensors)
    image.entries.emplace(std::stoull(info.name), &info);
  const json table = json::parse(image.header.metadata.at(kTableKey));
  for (const auto& [name, entry] : table.items()) {
    File& file = image.files[name];
    file.whole = entry.at("whole").get<std::map<std::string, std::uint64_t>>();
    if (!entry.contains("divided")) continue;
    for (const auto& [tensor, divided] : entry.at("divided").items()) {
      Divided& to = file.divided[tensor];
      to.whole.name = tensor;
      to.whole.dtype = st::parse_dtype(divided.at("dtype").get<std::string>()).value();
      to.whole.shape = divided.at("shape").get<std::vector<std::uint64_t>>();
      for (const json& part : divided.at("parts"))
        to.parts.push_back({part.at(0).get<std::uint64_t>(), part.at(1).get<std::uint64_t>()});
    }
  }
  return image;
}

MemorySource::MemorySource(std::span<const std::byte> own,
                           std::span<const std::byte> first,
                           std::vector<std::span<const std::byte>> others)
    : unparsed_(std::move(others)) {
  // Its hash was right, so what does not fit together here was written by another version of this library.
  try {
    own_ = parse(own);
    first_ = parse(first);
    manifest_ = or_throw(parse_manifest(first_.header.metadata.at(kManifestKey)));
    const json disk = json::parse(first_.header.metadata.at(kNewestOnDiskKey));
    newest_on_disk_ = {disk.at(0).get<std::int64_t>(), disk.at(1).get<std::int64_t>()};
  } catch (const Error&) {
    throw;
  } catch (const std::exception& error) {
    refuse_image(error.what());
  }
}

bool MemorySource::has(const std::string& file) const {
  const std::string key = kTextPrefix + file;
  return own_.header.metadata.contains(key) || first_.header.metadata.contains(key);
}

std::string MemorySource::text(const std::string& file) {
  for (const Image* image : {&own_, &first_}) {
    const auto found = image->header.metadata.find(kTextPrefix + file);
    if (found != image->header.metadata.end()) return found->second;
  }
  throw Error(ErrorCode::kCheckpointMismatch, name_.string() + " was saved without " + file);
}

at::Tensor MemorySource::values(const Image& image, std::uint64_t entry) {
  const st::TensorInfo& info = *image.entries.at(entry);
  const at::Tensor tensor = allocate(info);
  if (tensor.nbytes() > 0) {
    std::memcpy(tensor.mutable_data_ptr(),
                image.bytes.data() + image.header.data_offset + info.begin,
                tensor.nbytes());
  }
  return tensor;
}

std::vector<const MemorySource::Image*> MemorySource::images() {
  for (const std::span<const std::byte> bytes : std::exchange(unparsed_, {}))
    others_.push_back(parse(bytes));
  std::vector<const Image*> images{&own_};
  if (first_.bytes.data() != own_.bytes.data()) images.push_back(&first_);
  for (const Image& image : others_) images.push_back(&image);
  return images;
}

at::Tensor MemorySource::assembled(const std::string& file, const st::TensorInfo& info) {
  struct Found {
    std::uint64_t begin = 0;  // bytes from the start of the whole tensor
    std::uint64_t bytes = 0;
    const std::byte* values = nullptr;
  };
  std::vector<Found> parts;
  at::Tensor whole = allocate(info);
  const std::uint64_t element = whole.element_size();
  for (const Image* const image : images()) {
    const auto in_file = image->files.find(file);
    if (in_file == image->files.end()) continue;
    const auto divided = in_file->second.divided.find(info.name);
    if (divided == in_file->second.divided.end() || divided->second.whole.shape != info.shape ||
        divided->second.whole.dtype != info.dtype) {
      continue;
    }
    for (const Part& part : divided->second.parts) {
      const st::TensorInfo& entry = *image->entries.at(part.entry);
      if (entry.dtype != info.dtype || part.begin > whole.nbytes() / element) return {};
      if (entry.num_bytes() == 0) continue;
      parts.push_back({part.begin * element,
                       entry.num_bytes(),
                       image->bytes.data() + image->header.data_offset + entry.begin});
    }
  }
  std::sort(
      parts.begin(), parts.end(), [](const Found& a, const Found& b) { return a.begin < b.begin; });
  std::uint64_t end = 0;  // each part begins where the one before ends
  for (const Found& part : parts) {
    if (part.begin != end || part.bytes > whole.nbytes() - end) return {};
    std::memcpy(
        static_cast<std::byte*>(whole.mutable_data_ptr()) + part.begin, part.values, part.bytes);
    end += part.bytes;
  }
  return end == whole.nbytes() ? whole : at::Tensor();
}

LoadedParts MemorySource::parts(const std::string& file,
                                const PartsWanted& wanted,
                                LoadedMemory /*memory*/) {
  const auto mine = own_.files.find(file);
  const auto shared = first_.files.find(file);
  if (mine == own_.files.end() && shared == first_.files.end())
    throw Error(ErrorCode::kCheckpointMismatch, name_.string() + " was saved without " + file);
  const auto other_parts = [&](const std::string& tensor) {
    return Error(ErrorCode::kCheckpointMismatch,
                 name_.string() + " has other parts of " + tensor + " in " + file +
                     " than this rank holds now");
  };
  LoadedParts loaded;
  // What a file of one rank only has (its random states), else what is the same on all.
  const bool is_own = shared == first_.files.end();
  const Image& image = is_own ? own_ : first_;
  for (const auto& [name, entry] : (is_own ? mine : shared)->second.whole) {
    st::TensorInfo info = *image.entries.at(entry);
    info.name = name;
    if (wanted(info)) throw other_parts(name);
    loaded.tensors.emplace(name, values(image, entry));
  }
  if (mine == own_.files.end()) return loaded;
  for (const auto& [name, divided] : mine->second.divided) {
    const auto places = wanted(divided.whole);
    if (!places) {
      at::Tensor whole = assembled(file, divided.whole);
      if (!whole.defined()) throw other_parts(name);
      loaded.tensors.emplace(name, std::move(whole));
      continue;
    }
    if (places->size() != divided.parts.size()) throw other_parts(name);
    std::vector<TensorPart> parts;
    for (std::size_t i = 0; i < places->size(); ++i) {
      const PartPlace& place = places->at(i);
      at::Tensor part = values(own_, divided.parts[i].entry);
      if (std::cmp_not_equal(place.begin, divided.parts[i].begin) || part.numel() != place.numel)
        throw other_parts(name);
      parts.push_back({place.begin, std::move(part)});
    }
    const at::Tensor placeholder = allocate(divided.whole, at::kMeta);
    loaded.tensors.emplace(name, placeholder);
    loaded.divided.add(placeholder, std::move(parts));
  }
  return loaded;
}

}  // namespace accel::checkpoint
