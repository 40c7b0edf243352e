// RankLine: where one rank of a group says how far it is, in memory that all of them share.
//
// The phase counts what the rank has published. Who needs it waits: first by looking, then asleep in a futex, from which
// it wakes now and then to see whether the rank still lives. A rank that is done, or cannot go on, says so in `state`.
//
// All bytes zero is a line of a rank that has not joined yet.
//
// Threads:  one rank writes its line, all read it.
// Source:   futex(2); the waiter's count and the phase are both sequentially consistent, so that either the waiter sees
//           the new phase or the publisher sees the waiter.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>

namespace accel::shm {

enum class RankState : std::uint32_t {
  kAbsent,  // has not joined
  kJoined,
  kLeft,    // has ended its part in order
  kBroken,  // met an error: nothing more comes from it
};

struct alignas(128) RankLine {
  std::atomic<std::uint32_t> phase;  // what was published last; wraps around
  std::atomic<std::uint32_t> num_sleeping;
  std::atomic<RankState> state;
  std::atomic<std::int32_t> pid;
  std::atomic<std::uint64_t> start_time;  // of that process, in ticks since boot
  std::atomic<std::uint64_t> layout;      // of the memory, as this rank knows it
  // Of the last step of the last collective that it has ended: what it died of afterwards harms none that goes on. In a
  // line of its own, since the others look at `phase`.
  alignas(64) std::atomic<std::uint32_t> ended_phase;
  std::atomic<std::uint32_t>
      is_copying;  // 1: into or out of memory of other ranks (shm_straight.cc)
};
static_assert(std::atomic<std::uint32_t>::is_always_lock_free &&
              std::atomic<std::uint64_t>::is_always_lock_free);

// What a rank sleeps on that waits for any of several others. Rung by them, slept on by its rank alone.
struct Bell {
  std::atomic<std::uint32_t> rings;
  std::atomic<std::uint32_t> num_sleeping;
};

void ring_bell(Bell& bell) noexcept;

// Returns when it has been rung since `rings` was read: after some looks, or asleep for at most `at_most`.
void await_bell(Bell& bell, std::uint32_t rings, int spins, std::chrono::milliseconds at_most);

// Whether `phase` is reached or past.
[[nodiscard]] inline bool is_reached(std::uint32_t now, std::uint32_t phase) noexcept {
  return static_cast<std::int32_t>(now - phase) >= 0;
}

// Publishes `phase`: what was written before is seen by who waits for it.
void publish(RankLine& line, std::uint32_t phase) noexcept;

// Says `state`, and wakes who sleeps.
void enter(RankLine& line, RankState state) noexcept;

// Whether the phase is reached within `spins` looks.
[[nodiscard]] bool look_for(const RankLine& line, std::uint32_t phase, int spins) noexcept;

// Sleeps until the phase is reached, and asks `may_go_on` at least every `look_every`. False when that said no and the
// phase still is not reached.
[[nodiscard]] bool sleep_until(RankLine& line,
                               std::uint32_t phase,
                               std::chrono::milliseconds look_every,
                               const std::function<bool()>& may_go_on);

}  // namespace accel::shm
