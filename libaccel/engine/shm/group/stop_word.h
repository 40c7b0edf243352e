// StopWord: how ranks that share memory agree on the boundary at which all of them stop, without waiting for each other.
//
//   word   (the newest boundary that a rank has reached) * 2 + (1: a rank was asked to stop)
//
// Once a rank was asked the word stays as it is, and all stop at the boundary after the newest one.
//
// Threads:  one of each rank; the word is shared.
// Cost:     a read at each boundary, and a write by the rank that reaches it first.
// Source:   tests/unit/collectives/stop_word_test.cc goes through all interleavings of two and three ranks.
#pragma once

#include <atomic>
#include <cstdint>

namespace accel::shm {

// What a rank at a boundary does, given what it has read. Pure.
struct StopMove {
  std::uint64_t word =
      0;               // to be written in the place of what was read; the same: nothing to write
  bool stops = false;  // here, with all ranks
};
[[nodiscard]] StopMove stop_move(std::uint64_t seen,
                                 std::uint64_t boundary,
                                 bool is_asked) noexcept;

class StopWord {
 public:
  // word: 0 at first, the same for all ranks.
  explicit StopWord(std::atomic<std::uint64_t>& word) noexcept : word_(&word) {}

  // This rank has reached its next boundary. Whether all ranks stop there. Requires: all ranks reach the same boundaries.
  [[nodiscard]] bool reach(bool is_asked) noexcept;

 private:
  std::atomic<std::uint64_t>* word_;
  std::uint64_t boundary_ = 0;  // that this rank has reached
};

}  // namespace accel::shm
