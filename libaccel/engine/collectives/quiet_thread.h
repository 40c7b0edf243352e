// QuietThread: a thread that takes no signals: those are for the program's own.
#pragma once

#include <functional>
#include <string_view>
#include <thread>

namespace accel {

// name: at most 15 characters, shown by ps -L. purpose: what it does, for the message. Throws kProcessGroup when no thread can be
// started.
[[nodiscard]] std::thread start_quiet_thread(const char* name,
                                             std::string_view purpose,
                                             std::function<void()> body);

}  // namespace accel
