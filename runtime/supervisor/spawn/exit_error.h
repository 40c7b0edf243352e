// ExitError: how a worker ended, as an accel::Error: what, by evidence, and what to do about it.
//
// Shared by all who tell a person: the report of accel-launch, and the exception of a launcher inside a program.
//
// Threads:  pure functions.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include <accel/error.h>

#include "runtime/supervisor/protocol/job_outcome.h"

namespace accel::supervisor {

// "rank 1 of 4"; "rank 0" where it is alone.
[[nodiscard]] std::string rank_name(const WorkerExit& exit, int num_workers);

// "rank 1 of 4 was ended by SIGSEGV (Segmentation fault)", with code and remedy. rank: what the worker is called.
[[nodiscard]] Error error_of(const WorkerExit& exit, const std::string& rank);

// What a rank said itself in its error file.
struct OwnWords {
  std::string message;    // "ValueError: bad data"; one line, the first that says something
  std::string text;       // the whole message, of which the line is the beginning
  std::string traceback;  // of Python
};

// The error file of torch's @record and of libaccel: {"message": "..."} or
// {"message": {"message": "...", "extraInfo": {"py_callstack": "..."}}}. Hostile content gives nothing.
[[nodiscard]] OwnWords read_error_file(const std::string& content);

// One line: of the error file, else of the channel's last error; empty when it said nothing.
[[nodiscard]] std::string own_reason(const WorkerExit& exit, const OwnWords& words);

// One line without escape sequences and control letters; of text overwritten with \r the last state.
[[nodiscard]] std::string plain_line(std::string_view line);

// "2 processes that ended ranks had started: 7 rsync a, 8 make". At most four are named, each in one plain line.
[[nodiscard]] std::string described(const std::vector<Leftover>& processes, std::string_view what);

// The last `most` lines of `text`, plain.
[[nodiscard]] std::vector<std::string> last_lines(std::string_view text, std::size_t most);

}  // namespace accel::supervisor
