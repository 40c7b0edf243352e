// The dtypes of safetensors, and where tensors go in a file that is about to be written.
//
// The order of the tensors and the form of the JSON are those of the reference implementation, so
// that the same tensors give the same file to the byte whoever writes it
// (tests/peer/safetensors_interop.py).

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include <nlohmann/json.hpp>

#include <accel/safetensors.h>

#include "safetensors/shown_text.h"

namespace accel::safetensors {
namespace {

struct DtypeRow {
  std::string_view name;
  unsigned bits;
};
constexpr std::array<DtypeRow, static_cast<size_t>(Dtype::kCount_)> kDtypes = {{
    {"BOOL", 8},        {"F4", 4},      {"F6_E2M3", 6}, {"F6_E3M2", 6}, {"U8", 8},
    {"I8", 8},          {"F8_E5M2", 8}, {"F8_E4M3", 8}, {"F8_E8M0", 8}, {"F8_E4M3FNUZ", 8},
    {"F8_E5M2FNUZ", 8}, {"I16", 16},    {"U16", 16},    {"F16", 16},    {"BF16", 16},
    {"I32", 32},        {"U32", 32},    {"F32", 32},    {"C64", 64},    {"F64", 64},
    {"I64", 64},        {"U64", 64},
}};
static_assert(kDtypes.back().bits != 0, "every Dtype needs its row");

// Appends `text` as a JSON string; false when it is not UTF-8.
bool append_json_string(std::string& out, const std::string& text) {
  try {
    out += nlohmann::json(text).dump();
    return true;
  } catch (const nlohmann::json::exception&) {
    return false;
  }
}

Result<std::string> encode_json(const Header& header) {
  const auto not_utf8 = [](const std::string& text) {
    return Error(ErrorCode::kInvalidArgument,
                 shown_name(text) + " is not UTF-8",
                 "rename it: a safetensors header is JSON");
  };
  std::string out = "{";
  if (!header.metadata.empty()) {
    out += "\"__metadata__\":{";
    for (const auto& [key, value] : header.metadata) {
      if (out.back() != '{') out += ',';
      if (!append_json_string(out, key)) return not_utf8(key);
      out += ':';
      if (!append_json_string(out, value)) return not_utf8(value);
    }
    out += '}';
  }
  for (const TensorInfo& tensor : header.tensors) {
    if (out.size() > 1) out += ',';
    if (!append_json_string(out, tensor.name)) return not_utf8(tensor.name);
    out += ":{\"dtype\":\"";
    out += dtype_name(tensor.dtype);
    out += "\",\"shape\":[";
    for (size_t i = 0; i < tensor.shape.size(); ++i) {
      if (i > 0) out += ',';
      out += std::to_string(tensor.shape[i]);
    }
    out += "],\"data_offsets\":[" + std::to_string(tensor.begin) + ',' +
           std::to_string(tensor.end) + "]}";
  }
  return out + '}';
}

}  // namespace

std::string_view dtype_name(Dtype dtype) noexcept {
  return kDtypes[static_cast<size_t>(dtype)].name;
}

std::optional<Dtype> parse_dtype(std::string_view name) noexcept {
  for (size_t i = 0; i < kDtypes.size(); ++i) {
    if (kDtypes[i].name == name) return static_cast<Dtype>(i);
  }
  return std::nullopt;
}

unsigned dtype_bits(Dtype dtype) noexcept {
  return kDtypes[static_cast<size_t>(dtype)].bits;
}

Result<std::uint64_t> tensor_bytes(std::string_view name,
                                   Dtype dtype,
                                   std::span<const std::uint64_t> shape) {
  const auto text = [&] {
    return "tensor " + shown_name(name) + " of dtype " + std::string(dtype_name(dtype)) +
           " and shape " + list_text(shape);
  };
  std::uint64_t bits = dtype_bits(dtype);
  for (const std::uint64_t dim : shape) {
    if (__builtin_mul_overflow(bits, dim, &bits)) {
      return header_error(text() + " has more bits than 64-bit numbers can count");
    }
  }
  if (bits % 8 != 0) return header_error(text() + " does not end at a byte");
  return bits / 8;
}

Result<Layout> plan_layout(std::vector<TensorSpec> tensors,
                           std::map<std::string, std::string> metadata) {
  if (const auto name = repeated_name(tensors)) {
    return Error(ErrorCode::kInvalidArgument,
                 "two tensors are named " + shown_name(*name),
                 "give every tensor a name of its own");
  }
  std::sort(tensors.begin(), tensors.end(), [](const TensorSpec& a, const TensorSpec& b) {
    return a.dtype != b.dtype ? a.dtype > b.dtype : a.name < b.name;
  });
  Header header{.metadata = std::move(metadata)};
  header.tensors.reserve(tensors.size());
  for (TensorSpec& spec : tensors) {
    if (spec.name == kMetadataKey) {
      return Error(ErrorCode::kInvalidArgument,
                   "the tensor name __metadata__ is reserved by the format",
                   "rename the tensor");
    }
    const Result<std::uint64_t> bytes = tensor_bytes(spec.name, spec.dtype, spec.shape);
    if (!bytes) return bytes.error();
    TensorInfo info{
        .name = std::move(spec.name), .dtype = spec.dtype, .shape = std::move(spec.shape)};
    info.begin = header.data_bytes;
    if (__builtin_add_overflow(header.data_bytes, *bytes, &info.end)) {
      return Error(
          ErrorCode::kInvalidArgument,
          "the tensors up to " + shown_name(info.name) + " have more bytes than 64 bits can count");
    }
    header.data_bytes = info.end;
    header.tensors.push_back(std::move(info));
  }
  Result<std::string> json = encode_json(header);
  if (!json) return std::move(json).error();
  json->append((kDataAlignment - (kPrefixBytes + json->size()) % kDataAlignment) % kDataAlignment,
               ' ');
  if (json->size() > kMaxHeaderBytes) {
    return header_error("the header would have " + std::to_string(json->size()) +
                        " bytes; at most " + std::to_string(kMaxHeaderBytes) + " are allowed");
  }
  header.data_offset = kPrefixBytes + json->size();
  const std::uint64_t length = json->size();
  std::string bytes(kPrefixBytes, '\0');
  std::memcpy(bytes.data(), &length, kPrefixBytes);
  return Layout{.header = std::move(header), .bytes = std::move(bytes) + *json};
}

}  // namespace accel::safetensors
