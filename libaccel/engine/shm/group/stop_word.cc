// Why no rank goes past the boundary where the others stop.
//
// A rank goes on from boundary n in one of three ways: it has read a word whose newest boundary is n or later and that nobody
// was asked with; it has put n there itself; or a boundary after n is the one to stop at. In the first two the word has held a
// boundary of at least n, unasked. Whoever is asked later exchanges that word, or a later one, for the same with the mark:
// the boundary to stop at is after n. The exchange compares, so nothing can come between the read and the write, and what
// has the mark is never written again: all ranks read the same boundary out of it.
//
//   rank 0 at 4, rank 1 at 3 and asked:   word 4, unasked -> 4, asked   both stop at 5: rank 1 passes 4 before
//
// A word for the step of each rank, with the largest of them taken by the rank that is asked, would not do: between its look
// at a rank and its verdict that rank may go on from the very boundary.
//
// Nobody waits, so a rank that dies stops no other here. One that is ahead costs the others no time.

#include "libaccel/engine/shm/group/stop_word.h"

#include <algorithm>

namespace accel::shm {

StopMove stop_move(std::uint64_t seen, std::uint64_t boundary, bool is_asked) noexcept {
  const std::uint64_t newest = seen >> 1;
  if ((seen & 1) != 0) return {.word = seen, .stops = boundary > newest};
  return {.word = std::max(newest, boundary) << 1 | (is_asked ? 1U : 0U)};
}

bool StopWord::reach(bool is_asked) noexcept {
  ++boundary_;
  std::uint64_t seen = word_->load();
  while (true) {
    const StopMove move = stop_move(seen, boundary_, is_asked);
    if (move.word == seen || word_->compare_exchange_weak(seen, move.word)) return move.stops;
  }
}

}  // namespace accel::shm
