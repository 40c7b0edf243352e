// ExportScript: the text of export_model.py, which stands in this program.
#pragma once

#include <string_view>

namespace accel::launcher {

[[nodiscard]] std::string_view export_script() noexcept;

}  // namespace accel::launcher
