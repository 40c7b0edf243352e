// The monitored barrier: all come in the first step, and go in the second.
//
// In the first step a rank waits for all others at once until its deadline, and then looks who is missing. One that has come and
// given up since is not missing; so those that still wait do not blame it, but go on to wait for who is, or tell (is_in_vain()).
//
// The second step has the timeout of the group: who has come goes there too, however late it is scheduled, or has given up and
// is seen to have. With the deadline of the call one rank might give up there after another one has passed.

#include <algorithm>
#include <utility>

#include "libaccel/engine/shm/group/shm_group.h"
#include "libaccel/engine/shm/group/wait_slice.h"

namespace accel::shm {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

struct ShmGroup::Muster {
  milliseconds timeout;
  RollCall roll_call;
  Clock::time_point began = Clock::now();
  [[nodiscard]] Clock::time_point deadline() const { return began + timeout; }
  // Until now; not more than was allowed.
  [[nodiscard]] milliseconds waited() const {
    return std::min(timeout, std::chrono::duration_cast<milliseconds>(Clock::now() - began));
  }
};

Result<void> ShmGroup::monitored_barrier(milliseconds timeout, RollCall roll_call) {
  if (auto usable = check_usable(); !usable) return usable;
  const Muster coming = {.timeout = timeout, .roll_call = roll_call};
  const Call call = call_of(CallKind::kMonitoredBarrier, 0);
  // Whoever is still in a collective before is missing too.
  if (auto ended = await_all(phase_, coming); !ended) return ended;
  ++phase_;
  publish_step(call);
  if (auto came = await_all(phase_, coming); !came) return came;
  if (auto agreed = check_all_calls(); !agreed) return agreed;
  ++phase_;
  publish_step(call);
  const Muster going = {.timeout = options_.timeout, .roll_call = roll_call};
  if (auto went = await_all(phase_, going); !went) return went;
  if (auto agreed = check_all_calls(); !agreed) return agreed;
  end_collective();
  return {};
}

Result<void> ShmGroup::await_all(std::uint32_t phase, const Muster& muster) {
  const milliseconds look_every = point_to_point_.is_empty() ? kLookEvery : kLookWithLetters;
  const auto look_once = [] { return false; };
  for (int rank = 0; rank < world_size(); ++rank) {
    RankLine& line = memory_.line(rank);
    bool is_here = look_for(line, phase, options_.spins);
    bool is_awaited = true;
    while (!is_here && is_awaited) {
      const milliseconds slice = wait_slice(look_every, muster.deadline() - Clock::now());
      is_here = sleep_until(line, phase, slice, look_once);
      if (auto moved = point_to_point_.progress(); !moved) return broken(std::move(moved).error());
      is_awaited = Clock::now() < muster.deadline() &&
                   (!is_look_due() || !is_in_vain(phase, muster.roll_call));
    }
    if (is_here) continue;
    if (auto usable = check_usable(); !usable) return usable;
    const std::vector<Absent> absent = absent_before(phase);
    if (absent.empty()) return {};  // the last one came just now
    return broken(
        accel::shm::error_of(absent, world_size(), muster.waited())
            .while_doing("a collective between ranks of this node, as " + label_of(this->rank())));
  }
  return {};
}

bool ShmGroup::is_in_vain(std::uint32_t phase, RollCall roll_call) {
  if (is_aborted_.load()) return true;
  bool is_anybody_awaited = false;
  for (int rank = 0; rank < world_size(); ++rank) {
    if (look_for(memory_.line(rank), phase, 0)) continue;
    const bool is_lost = loss_of(rank).has_value();
    if (is_lost && roll_call == RollCall::kUntilFirstLoss) return true;
    is_anybody_awaited = is_anybody_awaited || !is_lost;
  }
  return !is_anybody_awaited;
}

std::vector<Absent> ShmGroup::absent_before(std::uint32_t phase) {
  std::vector<Absent> absent;
  for (int rank = 0; rank < world_size(); ++rank) {
    if (look_for(memory_.line(rank), phase, 0)) continue;
    const std::optional<Loss> loss = loss_of(rank);
    absent.push_back({.rank = name_of(rank), .why = loss ? text_of(*loss) : ""});
  }
  return absent;
}

}  // namespace accel::shm
