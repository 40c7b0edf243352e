// TrackSink: where the entries of one tracker go, on the writing thread.
//
// Threads:  write() and drain() on the writing thread. is_done() and problem() from any.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <accel/tracker_value.h>

#include "libaccel/tracking/append_file.h"

namespace accel::tracking {

// kStart: nothing yet, but the tracker is to begin.
enum class EntryKind { kStart, kConfig, kLog, kImages, kHistogram, kCall, kFinish };

struct TrackEntry {
  EntryKind kind = EntryKind::kLog;
  std::string tag;     // of a histogram; of a call its name
  TrackerDict values;  // of a call its arguments
  TrackerImages images;
  std::vector<double> samples;  // of a histogram
  std::optional<std::int64_t> step = {};
  TrackerDict kwargs;
  double wall_time = 0;  // seconds since 1970; filled in when it is handed over
};

// What an entry takes in memory, roughly.
[[nodiscard]] std::size_t bytes_of(const TrackEntry& entry);

class TrackSink {
 public:
  virtual ~TrackSink() = default;

  virtual void write(const TrackEntry& entry) = 0;
  // Hands on what is held back. Called after each write(), and every half second while it is not empty or needs_tending().
  virtual Backlog drain() = 0;

  [[nodiscard]] virtual bool needs_tending() const { return false; }
  // After kFinish: whether nothing is under way any more.
  [[nodiscard]] virtual bool is_done() const { return true; }
};

}  // namespace accel::tracking
