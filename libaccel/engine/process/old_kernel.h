// OldKernel: what Accelerate says of a Linux on which processes that train have been seen to hang.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace accel {

// `release`: as uname -r prints it. std::nullopt from 5.5.0 on, and for what is no number.
// Source:   accelerate.utils.other.check_os_kernel, https://github.com/huggingface/accelerate/issues/1929.
[[nodiscard]] std::optional<std::string> old_kernel_notice(std::string_view release);

}  // namespace accel
