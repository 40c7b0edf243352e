// RandomDigits: names that nobody else draws, neither another process nor an earlier one with the same id.
//
// Threads:  may be called from any thread.
#pragma once

#include <cstddef>
#include <string>

namespace accel {

// `count` hexadecimal digits, drawn from the system.
[[nodiscard]] std::string random_digits(std::size_t count);

}  // namespace accel
