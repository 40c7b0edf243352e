// TwoLevelRanks: the ranks of several nodes as threads. The nodes are memories that only some of them share, and what goes between
// is real: Gloo over the loopback device.
#pragma once

#include <barrier>
#include <cstdint>
#include <functional>
#include <memory>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include <ATen/Parallel.h>
#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include <accel/error.h>

#include "libaccel/engine/collectives/shm_backend.h"
#include "libaccel/engine/collectives/two_level_group.h"
#include "libaccel/engine/process/gloo_backend.h"
#include "libaccel/engine/process/sigpipe.h"
#include "libaccel/engine/shm/group/shm_group.h"

namespace accel::test {

inline int size_of(const NodeLayout& layout) {
  return layout.num_nodes() * static_cast<int>(layout.nodes[0].size());
}

inline void run_on_nodes(const NodeLayout& layout, const std::function<void(ShmBackend&)>& body) {
  const int world_size = size_of(layout);
  const shm::GroupShape shape = {.world_size = static_cast<int>(layout.nodes[0].size()),
                                 .slot_bytes = 8192};
  std::vector<UniqueFd> memories;
  for (int node = 0; node < layout.num_nodes(); ++node)
    memories.push_back(or_throw(shm::GroupMemory::create(shape)));
  std::vector<int> names(static_cast<std::size_t>(world_size));
  std::iota(names.begin(), names.end(), 0);
  ignore_sigpipe_unless_handled();
  auto store = c10::make_intrusive<c10d::HashStore>();
  std::barrier all_are_through(world_size);
  std::vector<std::jthread> threads;
  for (int rank = 0; rank < world_size; ++rank) {
    threads.emplace_back([&, rank] {
      at::set_num_threads(1);
      const auto node = static_cast<std::size_t>(layout.node_of(rank));
      auto memory = or_throw(shm::ShmGroup::join(
          memories[node],
          {.rank = layout.place_of(rank), .shape = shape, .names = layout.nodes[node]}));
      auto gloo =
          connect_gloo(store, {.rank = rank, .world_size = world_size, .is_one_machine = true});
      ShmBackend backend(std::make_shared<TwoLevelGroup>(TwoLevelGroup::Parts{
                             .rank = rank,
                             .layout = layout,
                             .names = names,
                             .node = std::move(memory),
                             .link = std::make_shared<NodeLink>(std::move(gloo))}),
                         "accel_two_level");
      body(backend);
      all_are_through.arrive_and_wait();
    });
  }
}

inline std::string message_of(const std::function<void()>& act) {
  try {
    act();
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

}  // namespace accel::test
