// DropLedger: what a sink in trouble loses, when to try it again, and what to tell the user. Pure.
//
// StallWatch: tells a sink that has stopped moving from one that is only slow. Pure.
//
// Threads:  one thread each.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>

#include "runtime/clock.h"

namespace accel::supervisor {

// "[accel: 123 bytes dropped]\n", on a line of its own.
[[nodiscard]] std::string drop_marker(std::uint64_t bytes, bool at_line_start);

class DropLedger {
 public:
  static constexpr std::chrono::seconds kRetryEvery{1};
  static constexpr std::chrono::seconds kNoticeEvery{10};

  explicit DropLedger(std::string sink) : sink_(std::move(sink)) {}

  [[nodiscard]] bool is_dropping() const noexcept { return is_dropping_; }
  [[nodiscard]] std::uint64_t dropped() const noexcept { return dropped_; }

  // The sink refused bytes because of `reason`, or still does. Returns the notice to give, unless
  // one was given within kNoticeEvery.
  std::optional<std::string> begin(const std::string& reason, TimePoint now);

  void drop(std::uint64_t bytes) noexcept {
    dropped_ += bytes;
    unreported_ += bytes;
  }

  // Whether the sink deserves another attempt; at most one each kRetryEvery.
  [[nodiscard]] bool should_retry(TimePoint now) const noexcept;

  // The sink has taken the marker. Returns the notice to give, unless one was given within
  // kNoticeEvery; the next one then counts these bytes as well.
  std::optional<std::string> end(TimePoint now);

  // Nothing comes any more. Returns the notice to give when bytes were dropped since the last one.
  std::optional<std::string> last_words();

 private:
  std::string sink_;
  bool is_dropping_ = false;
  std::uint64_t dropped_ = 0;     // since the last marker
  std::uint64_t unreported_ = 0;  // since the last notice that gave a number
  TimePoint last_attempt_;
  std::optional<TimePoint> last_begin_notice_;
  std::optional<TimePoint> last_end_notice_;
};

class StallWatch {
 public:
  explicit StallWatch(std::chrono::milliseconds limit) : limit_(limit) {}

  // progress   a counter of the sink that grows whenever it takes something.
  // is_wanted  something waits for the sink, or is being dropped because of it.
  // Returns whether the sink is stalled: wanted for the whole limit without progress, and still so.
  bool observe(std::uint64_t progress, bool is_wanted, TimePoint now);

  [[nodiscard]] bool is_stalled() const noexcept { return is_stalled_; }
  // A stall is over as soon as the sink moves, before anybody observes it.
  [[nodiscard]] bool is_stalled_at(std::uint64_t progress) const noexcept {
    return is_stalled_ && progress == progress_;
  }

 private:
  std::chrono::milliseconds limit_;
  std::optional<TimePoint> still_since_;  // set while wanted and not moving
  std::uint64_t progress_ = 0;
  bool is_stalled_ = false;
};

}  // namespace accel::supervisor
