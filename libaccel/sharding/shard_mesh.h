// ShardMesh: among whom a model is divided, and who else holds the same shards.
//
//   FULL_SHARD, SHARD_GRAD_OP          shards: all ranks                replicas: nobody
//   HYBRID_SHARD, HYBRID_SHARD_ZERO2   shards: the ranks of the node    replicas: the ranks with this place on all nodes
//
// On one node both are the same. Parameters, gradients and optimizer states are sums over `shards` once: what is computed
// of all shards (norms, whole states) concerns one replica. Only gradients are averaged over `replicas` too, after which
// every replica takes the same step.
#pragma once

#include <memory>

#include <accel/types.h>

namespace accel {
class ProcessGroup;
}

namespace accel::sharding {

struct ShardMesh {
  std::shared_ptr<ProcessGroup> world;
  std::shared_ptr<ProcessGroup> shards;
  std::shared_ptr<ProcessGroup> replicas;  // nullptr: nobody else has this rank's shards
};

// Throws kUnsupported for a hybrid strategy when ranks of several nodes could not be put together by nodes; says why (nodes
// with unequal numbers of ranks).
[[nodiscard]] ShardMesh make_mesh(std::shared_ptr<ProcessGroup> world, ShardingStrategy strategy);

}  // namespace accel::sharding
