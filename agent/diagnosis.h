// Diagnosis: what the kernel says about the workers of a job, to see where they hang.
//
// Threads:  any; reads small files of /proc.
#pragma once

#include <vector>

#include "accel/v1/control.pb.h"
#include "runtime/system.h"

namespace accel::agent {

// One chunk per worker: state, what each thread waits for (wchan), the kernel stack where we may read it.
[[nodiscard]] std::vector<v1::DiagChunk> diagnose(const v1::Job& job, System& system);

}  // namespace accel::agent
