// WrittenOutput: whether what a command printed has reached its place.
//
// Threads:  at the end of main().
#pragma once

#include <string>

namespace accel::launcher {

// `status`, or that of an error (told on stderr) when stdout did not take all of it: a full disk behind
// `accel completion bash > FILE` is seen only now.
[[nodiscard]] int status_with_output(const std::string& program, int status);

}  // namespace accel::launcher
