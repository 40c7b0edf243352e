// RankFailure: which rank of mpirun failed first, as Open MPI says it on stderr when it ends the others.
//
//   mpirun noticed that process rank 3 with PID 41 on node two exited on signal 9 (Killed).
//   Process name: [[30591,1],1] / Exit code:    7
//
// mpirun alone knows that; its exit status tells neither rank nor host. Open MPI 4 loses these words now and then,
// when it ends before it has written them. Hydra (MPICH, Intel MPI) says it among the
// output of the ranks, which no report quotes.
//
// Threads:  pure functions.
// Source:   the words of Open MPI 4.1.4; tests/integration/mpi.
#pragma once

#include <string>
#include <string_view>

namespace accel::launcher {

// "rank 3 on two was ended by signal 9 (Killed)"; empty where `output`, the end of what mpirun and its ranks
// printed, says nothing of it.
[[nodiscard]] std::string describe_rank_failure(std::string_view output);

}  // namespace accel::launcher
