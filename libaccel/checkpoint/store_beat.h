// StoreBeat: signs of life of ranks, through the store of the process group.
//
// Of ranks of its own node a rank knows when they die; of others only what they say. So each rank writes a number that grows,
// and looks at that of the next rank: a ring, in which every rank is looked at by one. Whoever finds its neighbour silent for
// too long writes the neighbour's rank where all look.
//
//   <name>/beat/<rank>   a number, then "left" when the rank needs nobody any more
//   <name>/silent        the rank that was found silent
//
// A process that is stopped or cannot reach the store beats as little as one that is dead: the silence is long for that reason.
//
// Threads:  StoreBeat has one of its own; the store must take calls from it and from others.
// Cost:     two small requests each period and rank.
#pragma once

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <optional>
#include <stop_token>
#include <string>
#include <thread>

#include <c10/util/intrusive_ptr.h>

namespace c10d {
class Store;
}

namespace accel::checkpoint {

struct Pulse {
  std::chrono::milliseconds period{5'000};
  std::chrono::milliseconds longest_silence{60'000};  // several periods
};

// What a rank's beats say.
class SilenceClock {
 public:
  using TimePoint = std::chrono::steady_clock::time_point;

  explicit SilenceClock(const Pulse& pulse) : pulse_(pulse) {}

  // beat: the last one that is known. Whether it has been the same for too long. Of the time between two looks no more than
  // two periods count: a process that was stopped itself has heard nothing meanwhile.
  [[nodiscard]] bool is_silent_for_too_long(const std::string& beat, TimePoint now);

 private:
  Pulse pulse_;
  std::string beat_;
  std::optional<TimePoint> last_look_;
  std::chrono::steady_clock::duration silence_{0};
};

class StoreBeat {
 public:
  // Begins to beat; nothing in a job of one rank. name: of the keys, the same on all ranks. Throws what the store throws.
  StoreBeat(c10::intrusive_ptr<c10d::Store> store,
            std::string name,
            int rank,
            int size,
            const Pulse& pulse);
  // Says that this rank has left. Throws nothing when the store is gone.
  ~StoreBeat();
  StoreBeat(const StoreBeat&) = delete;
  StoreBeat& operator=(const StoreBeat&) = delete;

  // The rank that somebody has found silent. Throws what the store throws.
  [[nodiscard]] std::optional<int> silent_rank() const;

 private:
  void run(const std::stop_token& stop);
  // Writes a beat, and the neighbour's rank when that is silent.
  void beat(SilenceClock& clock);
  [[nodiscard]] std::string key_of(int rank) const;

  c10::intrusive_ptr<c10d::Store> store_;
  std::string name_;
  int rank_;
  int neighbour_;
  Pulse pulse_;
  int number_ = 0;
  std::mutex mutex_;
  std::condition_variable_any never_;
  std::jthread thread_;
};

}  // namespace accel::checkpoint
