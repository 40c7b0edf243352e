// RankChoice: the ranks that a user asked for, against those that a job has.
//
// Threads:  a pure function.
#pragma once

#include <vector>

#include <accel/result.h>

#include "accel/v1/control.pb.h"

namespace accel::cluster {

// Nothing is said of a job whose ranks are not known yet. `may_grow`: of a job over several nodes, which may have more
// ranks by and by, or had them, nothing is said either. Errors  kUsage.
[[nodiscard]] Result<void> check_ranks(const v1::Job& job,
                                       const std::vector<unsigned>& asked,
                                       bool may_grow);

}  // namespace accel::cluster
