// StoreBeat: signs of life of ranks, through the store of the process group.
//
// Of ranks of its own node a rank knows when they die; of others only what they say. So each rank writes a number that grows,
// and looks at that of the next rank: a ring, in which every rank is looked at by one. A rank that says nothing looks at nobody
// either, so its watcher goes on to those behind it until one has beaten: of n ranks that die together the last one is known
// n - 1 periods after the first. Who finds a rank silent for too long adds to a list that all read.
//
//   <name>/beat/<rank>    a number, then "left" when the rank needs nobody any more
//   <name>/silences       how many have been found
//   <name>/silences/<n>   "<rank> <beat>", from 1: the rank is silent for as long as that is its last beat; without one, it
//                         has not begun
//
// All ranks begin within a moment: one that died before its first beat is found as silent as any other.
//
// A process that is stopped or cannot reach the store beats as little as one that is dead: the silence is long for that reason.
//
// Threads:  StoreBeat has one of its own; the store must take calls from it and from others.
// Cost:     two small requests each period and rank, one more for each silent rank.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <stop_token>
#include <string>
#include <thread>
#include <vector>

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
  // Whether the last look found the beat of the one before.
  [[nodiscard]] bool is_silent() const noexcept { return silence_ > silence_.zero(); }

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

  // Ranks that somebody has found silent and that have not beaten since. Throws what the store throws. Threads: one.
  [[nodiscard]] std::vector<int> silent_ranks();

 private:
  struct Silence {
    int rank = 0;
    std::string last_beat;
  };

  void run(const std::stop_token& stop);
  // Writes a beat, and looks at those of the next ranks.
  void beat();
  void report_silence(int rank, const std::string& last_beat);
  [[nodiscard]] std::string key_of(int rank) const;
  [[nodiscard]] std::string list_key() const;
  [[nodiscard]] std::string list_key(std::int64_t number) const;

  c10::intrusive_ptr<c10d::Store> store_;
  std::string name_;
  int rank_;
  int size_;
  Pulse pulse_;
  int number_ = 0;
  std::map<int, SilenceClock> clocks_;   // of ranks that were looked at
  std::map<int, std::string> reported_;  // last beats by rank
  std::int64_t num_counted_ = 0;         // of the list
  std::set<std::int64_t> unread_;        // of those
  std::vector<Silence> silences_;        // that were read and have not ended
  std::mutex mutex_;
  std::condition_variable_any never_;
  std::jthread thread_;
};

}  // namespace accel::checkpoint
