// FileOffer: a file of this user's on a disk, offered as memory is (memory_offer.h).
//
// Its size cannot be sealed, so who offers it is trusted not to cut it off under its readers.
//
// Threads:  functions without state.
#pragma once

#include "libaccel/engine/shm/memory/memory_offer.h"

namespace accel::shm {

// The same file. Errors as open_offer(), but for a size that is not sealed.
[[nodiscard]] Result<UniqueFd> open_file_offer(const MemoryOffer& offer);

}  // namespace accel::shm
