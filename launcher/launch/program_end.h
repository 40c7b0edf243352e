// ProgramEnd: the last words of a program of accel, whatever happened in it.
//
// Threads:  main()'s.
#pragma once

#include <functional>
#include <string>

namespace accel::launcher {

// The exit status that `run` gives. That of an error (told on stderr in the name of `program`) instead when an exception
// leaves it, which is a fault of ours, or when it gives 0 and stdout did not take all that was printed: a full disk behind
// `accel completion bash > FILE` is seen only at the end.
[[nodiscard]] int status_of_program(const std::string& program, const std::function<int()>& run);

}  // namespace accel::launcher
