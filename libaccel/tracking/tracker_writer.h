// TrackerWriter: the thread that writes what trackers are given, so that a step of training never waits for a disk.
//
//   log() --queue--> thread: sink.write(), sink.drain() --> kernel
//                                      ^ what the disk refuses stays in the sink, tried again every half second
//
// Entries are written in the order in which they were handed over. Queue and sinks together hold kMostHeldBytes; what comes beyond
// that is dropped, counted and reported.
//
// Threads:  any may call. The thread starts with the first entry and lives as long as the process.
// Cost:     of hand_over(): a lock, and a wake when the thread sleeps.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "libaccel/tracking/track_sink.h"
#include "runtime/clock.h"

namespace accel::tracking {

inline constexpr std::size_t kMostHeldBytes = std::size_t{64} << 20;
inline constexpr std::chrono::milliseconds kTendPeriod{500};
inline constexpr std::chrono::seconds kFlushLimit{10};

class TrackerWriter {
 public:
  using Notice = std::function<void(const std::string&)>;

  explicit TrackerWriter(std::size_t most_held_bytes = kMostHeldBytes)
      : most_held_bytes_(most_held_bytes) {}
  ~TrackerWriter();  // requires: the thread was never started, or stop() was called
  TrackerWriter(const TrackerWriter&) = delete;
  TrackerWriter& operator=(const TrackerWriter&) = delete;

  // The one of this process, never destroyed: other threads may still log while it exits.
  static TrackerWriter& of_process();

  void hand_over(std::shared_ptr<TrackSink> sink, TrackEntry entry);
  // Waits until what was handed over before is with the kernel. False at the deadline.
  bool flush(TimePoint deadline);
  // flush(), and until the sink is done.
  bool settle(const TrackSink& sink, TimePoint deadline);

  // Who hears of refused and lost entries; stderr by default. Called on the writing thread.
  void set_notice(Notice notice);
  void notify(const std::string& text);
  // Calls drain() of all sinks soon.
  void wake();
  // Ends the thread, after what was handed over. For tests.
  void stop();

  [[nodiscard]] std::uint64_t dropped() const;

 private:
  struct Handed {
    std::shared_ptr<TrackSink> sink;
    TrackEntry entry;
  };
  struct Held {
    std::size_t bytes = 0;
    bool needs_tending = false;
  };

  void start_thread();  // with mutex_ held
  void run();
  void write(const std::vector<Handed>& batch);
  Held drain();
  void report(const Backlog& backlog);

  const std::size_t most_held_bytes_;
  mutable std::mutex mutex_;
  std::condition_variable wake_;     // of the thread
  std::condition_variable settled_;  // of those who wait for it
  std::vector<Handed> queue_;
  std::size_t queued_bytes_ = 0;
  std::size_t backlog_bytes_ = 0;
  std::uint64_t handed_ = 0;   // entries, ever
  std::uint64_t written_ = 0;  // of them, those that went through write() and drain()
  std::uint64_t dropped_ = 0;
  bool has_thread_ = false;
  bool is_woken_ = false;
  bool is_stopping_ = false;
  bool is_stopped_ = false;
  Notice notice_;
  std::vector<std::shared_ptr<TrackSink>> sinks_;  // of the thread: with a backlog, or to be tended
  bool has_reported_ = false;                      // of the thread: of the disk that refuses now
  std::uint64_t reported_drops_ = 0;               // of the thread
};

}  // namespace accel::tracking
