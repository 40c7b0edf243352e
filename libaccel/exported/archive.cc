#include "libaccel/exported/archive.h"

#include <fcntl.h>
#include <nlohmann/json.hpp>
#include <sys/stat.h>

#include <accel/error.h>
#include <accel/result.h>

#include "libaccel/exported/graph_reader.h"
#include "runtime/printable.h"

namespace accel::exported {
namespace {

using nlohmann::json;

constexpr std::uint64_t kMostDirectoryBytes = std::uint64_t{1} << 28;
constexpr std::uint64_t kMostTextBytes = std::uint64_t{1} << 31;
constexpr std::size_t kMostDimensions = 64;

std::vector<std::int64_t> known_sizes(const json& list) {
  if (!list.is_array() || list.size() > kMostDimensions)
    throw damaged_export("a shape has too many dimensions");
  std::vector<std::int64_t> sizes;
  for (const json& item : list) {
    const auto [kind, value] = union_of(item);
    if (kind != "as_int") throw damaged_export("a weight has a size that is not known");
    const std::int64_t size = integer_of(value, "a size");
    if (size < 0) throw damaged_export("a weight has a size below 0");
    sizes.push_back(size);
  }
  return sizes;
}

// The bytes that a tensor reaches over; throws when they are not within what the entry has.
void check_extent(Payload& payload) {
  const std::uint64_t width = width_of_dtype(payload.dtype);
  if (width == 0)
    throw damaged_export("the dtype of " + printable(payload.name) +
                         " is not known: " + std::to_string(payload.dtype));
  if (payload.strides.size() != payload.sizes.size() || payload.offset < 0)
    throw damaged_export("the shape of " + printable(payload.name) + " and its strides differ");
  std::uint64_t last = static_cast<std::uint64_t>(payload.offset);
  bool overflows = false;
  for (std::size_t i = 0; i < payload.sizes.size(); ++i) {
    if (payload.sizes[i] == 0) return;  // no element
    std::uint64_t reach = 0;
    overflows |= __builtin_mul_overflow(static_cast<std::uint64_t>(payload.sizes[i] - 1),
                                        static_cast<std::uint64_t>(payload.strides[i]),
                                        &reach);
    overflows |= __builtin_add_overflow(last, reach, &last);
  }
  if (payload.bytes.size == 0) {
    payload.has_bytes = false;
    if (overflows || last > INT64_MAX / 64)
      throw damaged_export("the shape of " + printable(payload.name) + " is too large");
    return;
  }
  if (overflows || last >= payload.bytes.size / width)
    throw damaged_export("the tensor " + printable(payload.name) + " is not within the " +
                         std::to_string(payload.bytes.size) + " bytes of " +
                         printable(payload.path));
}

}  // namespace

std::size_t width_of_dtype(int dtype) noexcept {
  switch (dtype) {
    case 1:   // uint8
    case 2:   // int8
    case 12:  // bool
    case 29:  // float8: e4m3fn, e5m2, e4m3fnuz, e5m2fnuz
    case 30:
    case 31:
    case 32:
      return 1;
    case 3:   // int16
    case 6:   // float16
    case 13:  // bfloat16
    case 28:  // uint16
      return 2;
    case 4:  // int32
    case 7:  // float32
    case 9:  // complex32
      return 4;
    case 5:   // int64
    case 8:   // float64
    case 10:  // complex64
      return 8;
    case 11:  // complex128
      return 16;
    default:
      return 0;
  }
}

Archive::Archive(const std::filesystem::path& path, Holds holds)
    : owned_(::open(path.c_str(), O_RDONLY | O_CLOEXEC)), fd_(owned_.get()), path_(path.string()) {
  struct ::stat status {};
  if (fd_ < 0 || ::fstat(fd_, &status) != 0)
    throw Error(ErrorCode::kFileIo, "cannot open " + printable(path_) + ": " + errno_text(errno));
  if (!S_ISREG(status.st_mode)) throw Error(ErrorCode::kFileIo, printable(path_) + " is no file");
  open(static_cast<std::uint64_t>(status.st_size), holds);
}

Archive::Archive(int fd, std::uint64_t size, std::string path) : fd_(fd), path_(std::move(path)) {
  open(size, Holds::kGraphs);
}

void Archive::open(std::uint64_t size, Holds holds) {
  zip_ = or_throw(launcher::ZipArchive::open({.fd = fd_, .path = path_, .begin = 0, .size = size},
                                             kMostDirectoryBytes));
  if (zip_.entries().empty()) throw damaged_export("it has no entries");
  const std::string& first = zip_.entries().front().name;
  root_ = first.substr(0, first.find('/') + 1);
  const std::string prefix = root_ + "models/";
  for (const auto& entry : zip_.entries()) {
    if (!entry.name.starts_with(prefix) || !entry.name.ends_with(".json")) continue;
    models_.push_back(entry.name.substr(prefix.size(), entry.name.size() - prefix.size() - 5));
  }
  if (models_.empty() && holds == Holds::kGraphs)
    throw Error(ErrorCode::kCheckpointVersion,
                printable(path_) +
                    " has no models/NAME.json: it is no file of torch.export.save(), "
                    "or of a torch before 2.8",
                "export the model again with torch 2.11");
  if (text("archive_format") != "pt2") throw damaged_export("its archive_format is not pt2");
  const std::string version = text("archive_version");
  if (version != "0")
    throw Error(
        ErrorCode::kCheckpointVersion,
        "the exported model is an archive of version " + printable(version) + ", expected 0",
        "export the model again with torch 2.11");
  if (zip_.find(root_ + "byteorder") != nullptr && text("byteorder") != "little")
    throw Error(ErrorCode::kUnsupported,
                "the weights of the exported model are not little-endian",
                "export the model again on a little-endian machine");
}

launcher::FileSlice Archive::slice_of(const std::string& entry) const {
  const auto* found = zip_.find(root_ + entry);
  if (found == nullptr) throw damaged_export("it has no entry " + printable(entry));
  return or_throw(zip_.bytes_of(*found));
}

std::string Archive::text(const std::string& entry) const {
  const launcher::FileSlice slice = slice_of(entry);
  if (slice.size > kMostTextBytes)
    throw damaged_export("its entry " + printable(entry) + " has " + std::to_string(slice.size) +
                         " bytes");
  return or_throw(slice.text(0, slice.size));
}

std::vector<std::string> Archive::entries(const std::string& prefix) const {
  std::vector<std::string> found;
  for (const auto& entry : zip_.entries())
    if (entry.name.starts_with(root_ + prefix)) found.push_back(entry.name.substr(root_.size()));
  return found;
}

std::string Archive::graph_text(const std::string& model) const {
  return text("models/" + model + ".json");
}

std::vector<Payload> Archive::weights(const std::string& model) const {
  return payloads("data/weights/", model + "_weights_config.json");
}

std::vector<Payload> Archive::constants(const std::string& model) const {
  return payloads("data/constants/", model + "_constants_config.json");
}

std::vector<Payload> Archive::payloads(const std::string& folder, const std::string& config) const {
  std::vector<Payload> out;
  if (zip_.find(root_ + folder + config) == nullptr) return out;
  const json document = parse_export(text(folder + config));
  const json& entries = member_of(document, "config");
  if (!entries.is_object()) throw damaged_export(printable(config) + " has no config");
  for (const auto& [name, source] : entries.items()) {
    if (flag_of(source, "use_pickle"))
      throw Error(
          ErrorCode::kUnsupported,
          "the exported model has " + printable(name) +
              " as a pickle: a tensor of a class of its own, or an object that is no tensor",
          "export plain tensors: unwrap tensor subclasses before torch.export.export()");
    Payload payload;
    payload.name = name;
    payload.path = text_of(source, "path_name");
    payload.is_parameter = flag_of(source, "is_param");
    const json& meta = member_of(source, "tensor_meta");
    payload.dtype = static_cast<int>(integer_of(member_of(meta, "dtype"), "a dtype"));
    payload.sizes = known_sizes(member_of(meta, "sizes"));
    payload.strides = known_sizes(member_of(meta, "strides"));
    const auto [kind, offset] = union_of(member_of(meta, "storage_offset"));
    if (kind != "as_int") throw damaged_export("a weight has an offset that is not known");
    payload.offset = integer_of(offset, "an offset");
    payload.requires_grad = flag_of(meta, "requires_grad");
    payload.device_type = text_of(member_of(meta, "device"), "type");
    payload.bytes = slice_of(folder + payload.path);
    check_extent(payload);
    out.push_back(std::move(payload));
  }
  return out;
}

}  // namespace accel::exported
