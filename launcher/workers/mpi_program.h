// MpiProgram: the mpirun of this machine.
//
// Threads:  plain values.
#pragma once

#include <string>

namespace accel::launcher {

enum class MpiFamily {
  kOpenMpi,
  kHydra,  // Intel MPI, MVAPICH, MPICH: the same flags
};

struct MpiProgram {
  std::string name = "mpirun";
  MpiFamily family = MpiFamily::kHydra;
};

}  // namespace accel::launcher
