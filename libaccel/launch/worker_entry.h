// WorkerEntry: the inside of a worker: runs the function and says how it ended.
//
// Threads:  the one of the worker.
#pragma once

#include <functional>
#include <string>

namespace accel::launch {

// Names the function that a program executed again has to run in place of main().
inline constexpr const char* kFunctionVariable = "ACCEL_LAUNCH_FUNCTION";

// Runs `function` as a worker. 0; or 1 after an exception, whose type and text are on stderr and in
// TORCHELASTIC_ERROR_FILE. What stdio and the standard streams hold is written out, also at
// an exit() of the function, which runs no handlers and destructors but those that came in the meantime.
[[nodiscard]] int run_worker(const std::function<void()>& function);

// The same with a registered function; 1 and words when there is none of this name.
[[nodiscard]] int run_registered(const std::string& name);

// Ends this process with 1 and words when it was executed to run a registered function, and runs main() instead.
void end_unless_function_runs();

// "std::runtime_error: no such file", of the exception that is being handled; of a std::string or a text the same. Only the
// type of what else is thrown.
[[nodiscard]] std::string describe_current_exception();

// The error file as torch's @record writes it; a long message is cut to what the supervisor reads.
[[nodiscard]] std::string error_file_text(const std::string& message);

}  // namespace accel::launch
