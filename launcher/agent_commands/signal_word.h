// SignalWord: a signal as it is typed: 10, USR1, SIGUSR1 or sigusr1.
#pragma once

#include <optional>
#include <string_view>

namespace accel::launcher {

[[nodiscard]] std::optional<int> signal_of(std::string_view word);

}  // namespace accel::launcher
