// BackendRanks: ranks as threads, each with a ShmBackend: of one node, or of several that only some of them share.
//
// What goes between nodes is real: Gloo over the loopback device.
#pragma once

#include <barrier>
#include <functional>
#include <memory>
#include <numeric>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <ATen/Parallel.h>
#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include "libaccel/engine/collectives/node_layout.h"
#include "libaccel/engine/collectives/shm_backend.h"
#include "libaccel/engine/collectives/two_level_group.h"
#include "libaccel/engine/process/gloo_backend.h"
#include "libaccel/engine/shm/group/shm_group.h"

namespace accel::test {

// A rank as a thread, on the node of the layout; one node needs no second level.
inline std::unique_ptr<ShmBackend> join_backend(const NodeLayout& layout,
                                                int rank,
                                                const std::vector<UniqueFd>& memories,
                                                const c10::intrusive_ptr<c10d::Store>& store) {
  const auto node = static_cast<std::size_t>(layout.node_of(rank));
  const shm::GroupShape shape = {.world_size = static_cast<int>(layout.nodes[0].size()),
                                 .slot_bytes = 8192};
  auto own_node = or_throw(shm::ShmGroup::join(
      memories[node],
      {.rank = layout.place_of(rank), .shape = shape, .names = layout.nodes[node]}));
  if (layout.num_nodes() == 1) return std::make_unique<ShmBackend>(std::move(own_node));
  const int world_size = layout.num_nodes() * shape.world_size;
  std::vector<int> names(static_cast<std::size_t>(world_size));
  std::iota(names.begin(), names.end(), 0);
  auto gloo = connect_gloo(store, {.rank = rank, .world_size = world_size, .is_one_machine = true});
  return std::make_unique<ShmBackend>(std::make_shared<TwoLevelGroup>(TwoLevelGroup::Parts{
                                          .rank = rank,
                                          .layout = layout,
                                          .names = names,
                                          .node = std::move(own_node),
                                          .link = std::make_shared<NodeLink>(std::move(gloo))}),
                                      "accel_two_level");
}

inline void run_backends(const NodeLayout& layout, const std::function<void(ShmBackend&)>& body) {
  const int places = static_cast<int>(layout.nodes[0].size());
  std::vector<UniqueFd> memories;
  for (int node = 0; node < layout.num_nodes(); ++node)
    memories.push_back(
        or_throw(shm::GroupMemory::create({.world_size = places, .slot_bytes = 8192})));
  const auto store = c10::make_intrusive<c10d::HashStore>();
  std::barrier all_are_through(layout.num_nodes() * places);
  std::vector<std::jthread> threads;
  for (int rank = 0; rank < layout.num_nodes() * places; ++rank) {
    threads.emplace_back([&, rank] {
      at::set_num_threads(1);
      const auto backend = join_backend(layout, rank, memories, store);
      body(*backend);
      all_are_through.arrive_and_wait();
    });
  }
}

}  // namespace accel::test
