// NodeMeeting: how the ranks of several nodes find out who is where, and those of each node come to share memory.
//
//   1. Each rank says through the store where it is: the number of its node, from the launcher, and what the kernel says
//      (shm/node_identity.h). All read the same words, so all get the same layout.
//   2. The ranks of each node meet in shared memory (shm_meeting.h).
//   3. Each says whether its node has met; one node that has not is enough for all to give up.
//
// Two launchers on one machine are two nodes; containers of one machine that cannot share memory are, too.
//
// Threads:  one rank, one thread.
// Cost:     four rounds through the store.
// Source:   tests/unit/libaccel/collectives/two_level_group_test.cc.
#pragma once

#include <memory>

#include <c10/util/intrusive_ptr.h>

#include <accel/result.h>

#include "libaccel/engine/collectives/node_layout.h"
#include "libaccel/engine/collectives/shm_meeting.h"

namespace c10d {
class Store;
}

namespace accel {

struct NodeMeetingOptions {
  ShmMeetingOptions shm;  // of all ranks
  int launcher_node = 0;
};

struct MetNode {
  NodeLayout layout;  // several nodes, of equally many ranks
  std::unique_ptr<shm::ShmGroup>
      group;  // of this node; its errors give the ranks' numbers in the job
};

// The ranks of this rank's node share memory. `all` is of all ranks of the layout: what is of the node is put in here. Errors and
// what it throws: those of meet_in_shared_memory(). Requires: every rank calls it.
[[nodiscard]] Result<std::unique_ptr<shm::ShmGroup>> meet_on_node(
    const c10::intrusive_ptr<c10d::Store>& store,
    const NodeLayout& layout,
    const ShmMeetingOptions& all);

// Errors, the same on all ranks  kUnsupported: says which rank or what layout is in the way. Throws what exchange()
// throws, and kPeerLost when a rank dies on the way. Requires: every rank calls it.
[[nodiscard]] Result<MetNode> meet_by_nodes(const c10::intrusive_ptr<c10d::Store>& store,
                                            const NodeMeetingOptions& options);

}  // namespace accel
