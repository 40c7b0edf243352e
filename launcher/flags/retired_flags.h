// RetiredFlags: flags that `accelerate launch` had once, or that its older documents print.
//
// They are accepted with a notice, so that old scripts go on and say what to change.
//
// Threads:  constant data.
#pragma once

#include <span>
#include <string_view>

namespace accel::launcher {

struct RetiredFlag {
  std::string_view name;
  bool has_value = false;
  std::string_view successor;  // the flag that it means; empty: it does nothing
  std::string_view advice;     // after its name, in the notice
};

[[nodiscard]] std::span<const RetiredFlag> retired_flags();

}  // namespace accel::launcher
