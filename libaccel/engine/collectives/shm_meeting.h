// ShmMeeting: how the ranks of one node come to share the memory of a group.
//
//   1. Each rank says through the store which node it is on and whether a supervisor gives it memory; rank 0 offers
//      memory of its own too. All read the same votes, so all decide alike (decide()): the supervisor's memory when
//      everybody can have it, else rank 0's, through /proc (shm/memory_offer.h), else none.
//   2. Each maps the memory and says whether it has. One that has not is enough for all to give up.
//   3. They join the group (shm/shm_group.h).
//
// Memory is never that of an earlier group: it is rank 0's, or bears the name of rank 0's offer, which no other group has.
// It has no name in a file system: after the last process nothing is left.
//
// Threads:  one rank, one thread.
// Cost:     two rounds through the store.
// Source:   tests/unit/libaccel/collectives/shm_meeting_test.cc.
#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include <accel/channel.h>
#include <accel/result.h>

#include "libaccel/engine/collectives/store_round.h"
#include "libaccel/engine/shm/group/shm_group.h"
#include "libaccel/engine/shm/memory/node_identity.h"

namespace accel {

// What a rank says of itself.
struct ShmVote {
  Result<shm::NodeIdentity> node = shm::NodeIdentity();
  bool has_channel = false;  // memory may be asked of a supervisor
  shm::ProcessWatch::Process process = {};
  std::string offer;  // of rank 0: the text of a MemoryOffer
};

enum class ShmSource { kChannel, kRankZero };

// The same on all ranks, since it depends on the votes alone. Errors  kUnsupported: the ranks cannot share memory; says
// which rank and why. Pure.
[[nodiscard]] Result<ShmSource> decide(const std::vector<ShmVote>& votes);

struct ShmMeetingOptions {
  StoreMember member;
  shm::GroupOptions group;                               // rank and world size are the member's
  Result<shm::NodeIdentity> node = shm::NodeIdentity();  // of this process
  shm::ProcessWatch::Process process = {};               // likewise; pid 0: nobody watches it
  WorkerChannel* channel = nullptr;
};

// A group of all ranks of `store`, or, on all ranks alike, an Error that says why they cannot share memory. Throws what
// exchange() throws, and kPeerLost when a rank dies on the way: at once, when it has voted.
[[nodiscard]] Result<std::unique_ptr<shm::ShmGroup>> meet_in_shared_memory(
    c10d::Store& store, const ShmMeetingOptions& options);

}  // namespace accel
