// MainHook: whether this program, executed again as a worker, would run a function in place of main().
//
// Threads:  any.
#pragma once

namespace accel::launch {

// False: the C library called main() past our hook (libaccel was found behind it, or loaded later), and would again.
[[nodiscard]] bool is_main_hooked() noexcept;

}  // namespace accel::launch
