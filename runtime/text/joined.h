// Joined: texts one after another, with a separator between them.
//
// Threads:  pure.
#pragma once

#include <functional>
#include <string>
#include <string_view>

namespace accel {

// text: turns an item into its text. A separator stands before each text but the first; empty texts at the front count as none.
template <typename Items, typename Text = std::identity>
[[nodiscard]] std::string joined(const Items& items,
                                 std::string_view separator,
                                 const Text& text = {}) {
  std::string all;
  for (const auto& item : items) {
    if (!all.empty()) all += separator;
    all += std::invoke(text, item);
  }
  return all;
}

}  // namespace accel
