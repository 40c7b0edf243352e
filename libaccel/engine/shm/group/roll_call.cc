#include "libaccel/engine/shm/group/roll_call.h"

namespace accel::shm {

Error error_of(std::span<const Absent> absent, int world_size, std::chrono::milliseconds waited) {
  std::string who;
  for (const Absent& one : absent) {
    who += (who.empty() ? "rank " : ", rank ") + std::to_string(one.rank);
    if (!one.why.empty()) who += " (" + one.why + ")";
  }
  return Error(ErrorCode::kPeerLost,
               "of " + std::to_string(world_size) +
                   " ranks these have not come to a monitored barrier within " +
                   std::to_string(waited.count()) + " ms: " + who,
               "look at what they do instead (accel diagnose), and check that every rank calls the "
               "same collectives");
}

}  // namespace accel::shm
