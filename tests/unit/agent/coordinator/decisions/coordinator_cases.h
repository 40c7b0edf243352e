// What the tests of the coordinator's rules share: one job on a cluster without clock and network.
#pragma once

#include <chrono>
#include <optional>
#include <vector>

#include "agent/coordinator/decisions/coordinator.h"
#include "tests/support/virtual_cluster.h"

namespace accel::agent {

inline constexpr const char* kJob = "job-1";  // the cluster's only one

// A job of that many nodes, whose workers have work for ten minutes.
inline test::ClusterOptions options_of(int nodes, int min_nodes, int max_nodes) {
  test::ClusterOptions options;
  options.num_nodes = nodes;
  options.job = test::small_job(min_nodes, max_nodes);
  options.work = std::chrono::seconds(600);
  return options;
}

inline void connect(test::VirtualCluster& cluster, int node) {
  cluster.node(node).is_cut = false;
  cluster.settle();
}

// Only the first `number` nodes can reach the coordinator.
inline test::VirtualCluster with_nodes_up(const test::ClusterOptions& options, int number) {
  test::VirtualCluster cluster(options);
  for (int i = number; i < options.num_nodes; ++i) cluster.node(i).is_cut = true;
  cluster.settle();
  return cluster;
}

// Asks for a stop, and lets it be written; nothing else that is under way moves.
inline void stop_written(test::VirtualCluster& cluster,
                         bool kill,
                         std::optional<Milliseconds> grace = {}) {
  cluster.stop_job(kill, grace);
  cluster.apply({test::MoveKind::kWrite});
}

inline std::vector<NodeId> seats(const test::VirtualCluster& cluster) {
  std::vector<NodeId> ids;
  for (const Member& member : cluster.job()->members) ids.push_back(member.node_id);
  return ids;
}

// The first rank of the node ended, `ago` before now.
inline void exit_rank(test::VirtualCluster& cluster,
                      int node,
                      supervisor::ExitCause cause,
                      std::int64_t step = 5,
                      std::chrono::nanoseconds ago = std::chrono::nanoseconds(0)) {
  auto& virtual_node = cluster.node(node);
  supervisor::WorkerExit exit;
  exit.global_rank = virtual_node.workers.first_rank;
  exit.cause = cause;
  exit.exit_code = 3;
  exit.seen_at = cluster.now().time_since_epoch() - ago;
  virtual_node.workers.phase = test::Workers::Phase::kNone;
  cluster.tell_node(node, WorkerExited{kJob, virtual_node.workers.generation, step, exit});
}

}  // namespace accel::agent
