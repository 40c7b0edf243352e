// What a launcher of several nodes would say to this rank, for jobs of several nodes on one machine.
#pragma once

#include <cstdlib>
#include <string>

namespace accel::test {

// To be called in the body of run_ranks(), before PartialState. place: this rank's number on its node.
inline void be_on_node(int node, int num_nodes, int place, int num_places) {
  const auto set = [](const char* name, int value) {
    ::setenv(name, std::to_string(value).c_str(), 1);
  };
  set("GROUP_RANK", node);
  set("GROUP_WORLD_SIZE", num_nodes);
  set("LOCAL_RANK", place);
  set("LOCAL_WORLD_SIZE", num_places);
  ::setenv("GLOO_SOCKET_IFNAME", "lo", 1);
}

}  // namespace accel::test
