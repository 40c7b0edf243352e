#include "libaccel/sharding/shard_mesh.h"

#include <string>
#include <utility>

#include <accel/error.h>

#include "libaccel/process/process_group.h"

namespace accel::sharding {

ShardMesh make_mesh(std::shared_ptr<ProcessGroup> world, ShardingStrategy strategy) {
  const bool is_hybrid =
      strategy == ShardingStrategy::kHybridShard || strategy == ShardingStrategy::kHybridShardZero2;
  if (!is_hybrid) return {.world = world, .shards = world, .replicas = nullptr};
  if (world->node() != nullptr)
    return {.world = world, .shards = world->node(), .replicas = world->across()};
  if (!world->notice().empty()) {
    throw Error(ErrorCode::kUnsupported,
                std::string(to_string(strategy)) +
                    " divides a model over the ranks of each node: " + world->notice(),
                "give every node the same number of ranks, or use SHARD_GRAD_OP");
  }
  return {.world = world, .shards = world, .replicas = nullptr};
}

}  // namespace accel::sharding
