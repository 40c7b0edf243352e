// ShownText: how names and shapes of a file that nobody vouches for are shown in errors.
#pragma once

#include <algorithm>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <accel/error.h>

namespace accel::safetensors {

inline constexpr std::string_view kMetadataKey = "__metadata__";

inline Error header_error(std::string message) {
  return Error(ErrorCode::kSafetensorsHeader, std::move(message));
}

// Hostile names hold escape sequences or megabytes: control characters become '?', long ones are
// cut.
inline std::string shown_name(std::string_view name) {
  constexpr size_t kShown = 120;
  std::string out = "\"";
  for (const char c : name.substr(0, kShown)) {
    const auto byte = static_cast<unsigned char>(c);
    out += byte < 0x20 || byte == 0x7f || c == '"' ? '?' : c;
  }
  return out + (name.size() > kShown ? "...\"" : "\"");
}

// "[2, 3]"; long lists are cut.
template <typename Range>
std::string list_text(const Range& values) {
  constexpr size_t kShown = 16;
  std::string out = "[";
  size_t i = 0;
  for (const auto value : values) {
    if (i > 0) out += ", ";
    if (i++ == kShown) {
      out += "...";
      break;
    }
    out += std::to_string(value);
  }
  return out + "]";
}

// The first name that occurs twice, if any.
template <typename Tensor>
std::optional<std::string_view> repeated_name(const std::vector<Tensor>& tensors) {
  std::vector<std::string_view> names;
  names.reserve(tensors.size());
  for (const Tensor& tensor : tensors) names.push_back(tensor.name);
  std::sort(names.begin(), names.end());
  const auto twice = std::adjacent_find(names.begin(), names.end());
  if (twice == names.end()) return std::nullopt;
  return *twice;
}

}  // namespace accel::safetensors
