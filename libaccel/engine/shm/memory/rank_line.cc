#include "libaccel/engine/shm/memory/rank_line.h"

#include <climits>
#include <ctime>

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace accel::shm {
namespace {

// The word is in memory of several processes: no FUTEX_PRIVATE_FLAG.
void sleep_while(std::atomic<std::uint32_t>& word,
                 std::uint32_t value,
                 std::chrono::milliseconds at_most) {
  const timespec limit = {static_cast<std::time_t>(at_most.count() / 1'000),
                          static_cast<long>(at_most.count() % 1'000 * 1'000'000)};
  ::syscall(SYS_futex, &word, FUTEX_WAIT, value, &limit, nullptr, 0);
}

void wake(RankLine& line) {
  if (line.num_sleeping.load(std::memory_order_seq_cst) == 0) return;
  ::syscall(SYS_futex, &line.phase, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

inline void pause() noexcept {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

}  // namespace

void publish(RankLine& line, std::uint32_t phase) noexcept {
  line.phase.store(phase, std::memory_order_seq_cst);
  wake(line);
}

void enter(RankLine& line, RankState state) noexcept {
  line.state.store(state, std::memory_order_seq_cst);
  wake(line);
}

void ring_bell(Bell& bell) noexcept {
  bell.rings.fetch_add(1, std::memory_order_seq_cst);
  if (bell.num_sleeping.load(std::memory_order_seq_cst) == 0) return;
  ::syscall(SYS_futex, &bell.rings, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

void await_bell(Bell& bell, std::uint32_t rings, int spins, std::chrono::milliseconds at_most) {
  for (int i = 0; i < spins; ++i) {
    if (bell.rings.load(std::memory_order_acquire) != rings) return;
    pause();
  }
  bell.num_sleeping.fetch_add(1, std::memory_order_seq_cst);
  if (bell.rings.load(std::memory_order_seq_cst) == rings) sleep_while(bell.rings, rings, at_most);
  bell.num_sleeping.fetch_sub(1, std::memory_order_seq_cst);
}

bool look_for(const RankLine& line, std::uint32_t phase, int spins) noexcept {
  for (int i = 0;; ++i) {
    if (is_reached(line.phase.load(std::memory_order_acquire), phase)) return true;
    if (i >= spins) return false;
    pause();
  }
}

bool sleep_until(RankLine& line,
                 std::uint32_t phase,
                 std::chrono::milliseconds look_every,
                 const std::function<bool()>& may_go_on) {
  for (;;) {
    line.num_sleeping.fetch_add(1, std::memory_order_seq_cst);
    const std::uint32_t now = line.phase.load(std::memory_order_seq_cst);
    if (!is_reached(now, phase)) sleep_while(line.phase, now, look_every);
    line.num_sleeping.fetch_sub(1, std::memory_order_seq_cst);
    if (look_for(line, phase, 0)) return true;
    const bool goes_on = may_go_on();
    // It may have published, and then gone.
    if (look_for(line, phase, 0)) return true;
    if (!goes_on) return false;
  }
}

}  // namespace accel::shm
