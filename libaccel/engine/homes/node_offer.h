// NodeOffer: how rank 0 tells the other ranks of its node which memory, or which file, they are to map.
//
// Threads:  functions without state.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include <accel/result.h>

#include "libaccel/engine/shm/memory/memory_offer.h"

namespace accel::sharding {

// What a rank says: "<node>|<offer>". memory: a descriptor; -1: it offers none. Errors  kInternal; those of read_node_identity().
[[nodiscard]] Result<std::string> node_offer(int memory);

// Of what the ranks have said, the first one that is on another node than rank 0; none where all are on one.
[[nodiscard]] std::optional<std::size_t> rank_elsewhere(const std::vector<std::string>& said);

// Errors  kInvalidArgument where there is none.
[[nodiscard]] Result<shm::MemoryOffer> offer_of(const std::string& said);

}  // namespace accel::sharding
