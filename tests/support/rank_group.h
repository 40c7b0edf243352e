// RankGroup: runs the body of a test as N processes, the ranks of one job.
//
//   TEST(Gather, ConcatenatesInRankOrder) {
//     test::run_ranks(2, [] {
//       accel::PartialState state;
//       EXPECT_EQ(...);
//     });
//   }
//
// run_ranks() starts the test binary N times with a filter for the current test and the environment of
// a launched worker (RANK, LOCAL_RANK, WORLD_SIZE, MASTER_ADDR, ...): anew where the options have
// variables, else from main() on, with the libraries that are loaded (support/rank_main.cc). In such a
// process run_ranks() calls the body and ends the process; the parent waits and adds one failure
// with the output of each rank that failed. So what stands before run_ranks() in a test runs in
// every process, what follows in the parent alone. The parent hosts the c10d store, on a free port.
//
// Threads:  call it from the test's thread.
#pragma once

#include <chrono>
#include <functional>
#include <map>
#include <string>
#include <vector>

namespace accel::test {

struct RankGroupOptions {
  std::map<std::string, std::string>
      env;                            // added for every rank; an empty value unsets the variable
  std::chrono::seconds timeout{120};  // afterwards all ranks are killed and the test fails
  bool rank_0_hosts_store = false;    // as without a supervisor
  bool expect_success = true;         // false: the caller judges the RankExits
};

struct RankExit {
  int status = 0;      // exit code, or 128 + signal
  std::string output;  // stdout and stderr
};

// Returns how the ranks ended, by rank. Adds test failures for ranks that did not exit with 0.
std::vector<RankExit> run_ranks(int num_ranks,
                                const std::function<void()>& body,
                                const RankGroupOptions& options = {});

// The rank of this process inside a body; -1 in the parent.
int rank_of_this_process();

}  // namespace accel::test
