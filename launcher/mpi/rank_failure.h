// RankFailure: which rank of mpirun failed first, as mpirun says it when it ends the others.
//
//   Open MPI    mpirun noticed that process rank 3 with PID 41 on node two exited on signal 9 (Killed).
//               Process name: [[30591,1],1] / Exit code:    7
//   Intel MPI   =   RANK 1 PID 41 RUNNING AT two / =   KILLED BY SIGNAL: 9 (Killed)
//   MPICH       =   PID 41 RUNNING AT two / =   EXIT CODE: 9
//
// mpirun alone knows that; its exit status tells neither rank nor host.
//
// Threads:  pure functions.
// Source:   the words of Open MPI 4.1.4 and MPICH 4.0.2 as they print them, those of Intel MPI as documented.
#pragma once

#include <string>
#include <string_view>

namespace accel::launcher {

// "rank 3 on two was ended by signal 9 (Killed)"; empty where `output`, the end of what mpirun and its ranks
// printed, says nothing of it.
[[nodiscard]] std::string describe_rank_failure(std::string_view output);

}  // namespace accel::launcher
