// WantedShard: a shard of another rank, and where it goes.
#pragma once

#include <cstddef>
#include <span>

namespace accel::sharding {

struct WantedShard {
  int rank = 0;
  std::span<std::byte> into;  // as long as the shard
};

}  // namespace accel::sharding
