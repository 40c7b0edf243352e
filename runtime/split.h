// Split: the parts of a text between separators.
//
// Threads:  pure.
#pragma once

#include <string_view>
#include <vector>

namespace accel {

// Borrowed. No part comes after a separator that ends the text.
[[nodiscard]] inline std::vector<std::string_view> split(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  while (!text.empty()) {
    const std::size_t end = text.find(separator);
    parts.push_back(text.substr(0, end));
    text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
  }
  return parts;
}

}  // namespace accel
