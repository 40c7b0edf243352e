// Printable: text from a program we do not trust, made safe for a terminal and a log.
//
// Threads:  pure.
#pragma once

#include <string>
#include <string_view>

namespace accel {

// `text` with every byte replaced by '?' that is a control character (newline and tab stay), is not
// part of valid UTF-8, or belongs to a C1 control (U+0080 to U+009F, which some terminals obey).
[[nodiscard]] std::string printable(std::string_view text);

}  // namespace accel
