// TokenizeScript: the text of tokenize_text.py, which stands in this program.
#pragma once

#include <string_view>

namespace accel::launcher {

[[nodiscard]] std::string_view tokenize_script() noexcept;

}  // namespace accel::launcher
