#include "libaccel/engine/shm/memory/core_set.h"

#include <bit>
#include <cstring>

#include <sched.h>

namespace accel::shm {
namespace {

using Words = std::array<std::uint64_t, 16>;
static_assert(sizeof(cpu_set_t) == sizeof(Words));

Words words_of(const CoreSet& cores) noexcept {
  Words words;
  for (std::size_t i = 0; i < words.size(); ++i) words[i] = cores.words[i].load();
  return words;
}

int count_of(const Words& words) noexcept {
  int count = 0;
  for (const std::uint64_t word : words) count += std::popcount(word);
  return count;
}

bool have_common(const Words& one, const Words& other) noexcept {
  for (std::size_t i = 0; i < one.size(); ++i) {
    if ((one[i] & other[i]) != 0) return true;
  }
  return false;
}

}  // namespace

void read_own_cores(CoreSet& cores) noexcept {
  cpu_set_t own;
  if (::sched_getaffinity(0, sizeof own, &own) != 0) return;
  Words words;
  std::memcpy(words.data(), &own, sizeof words);
  for (std::size_t i = 0; i < words.size(); ++i) cores.words[i].store(words[i]);
}

bool has_core_of_its_own(std::span<const CoreSet* const> ranks, int rank) noexcept {
  const Words own = words_of(*ranks[static_cast<std::size_t>(rank)]);
  Words all = own;
  int num_ranks = 0;
  for (const CoreSet* const other : ranks) {
    const Words theirs = words_of(*other);
    if (count_of(theirs) == 0) return true;
    if (!have_common(own, theirs)) continue;
    ++num_ranks;
    for (std::size_t i = 0; i < all.size(); ++i) all[i] |= theirs[i];
  }
  return count_of(all) >= num_ranks;
}

}  // namespace accel::shm
