// WrappedText: text in lines of at most 80 columns.
//
// Threads:  pure.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace accel::launcher {

// Word by word, every line indented; a word that is longer than a line stays whole. Ends with a newline
// unless `text` is empty.
[[nodiscard]] std::string wrapped(std::string_view text, std::size_t indent);

}  // namespace accel::launcher
