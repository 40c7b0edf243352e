// BridgeScript: the text of tracker_bridge.py, which stands in this library.
#pragma once

#include <string_view>

namespace accel::tracking {

[[nodiscard]] std::string_view bridge_script() noexcept;

}  // namespace accel::tracking
