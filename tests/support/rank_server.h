// RankServer: a copy of the test's process from before its first test, of which ranks are forked.
//
// A process that is forked needs not load LibTorch, which takes a quarter of a second of the processor's time. But a process
// with threads must not be forked; the copy has none, for it has done nothing yet.
//
//   test process ---- asks ----> server --forks--> a process that forks the rank and ends
//        ^------------- becomes the rank's parent, as subreaper ----------'
//
// Threads:  one at a time.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include <sys/types.h>

namespace accel::test {

// To be called first in main(). In a rank it returns again, with that rank's arguments.
void begin_rank_server(int& argc, char**& argv);

// Starts a rank with these arguments and variables ("NAME=value"), and `output` as its stdout and stderr. It is a child of
// this process and dies with it. std::nullopt: main() began no server, or it is gone.
[[nodiscard]] std::optional<pid_t> fork_rank(const std::vector<std::string>& arguments,
                                             const std::vector<std::string>& env,
                                             int output);

}  // namespace accel::test
