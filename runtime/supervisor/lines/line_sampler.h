// LineSampler: which lines stay of a stream whose sink does not keep up (Overflow::kSample). Pure.
//
// From the moment when the sink has no room, and for a second, one whole line of each `distance` is offered to the sink
// and all else is lost. The distance begins at 16 lines and doubles whenever the sink has no room for a line either, so
// that what stays is spread over the second as evenly as the sink takes it. Then everything is passed on again, until
// the sink has no room: so of each second's output the beginning stays as it is, and lines from all over the rest.
//
// A line of more than kLongestLine bytes is never offered; the one behind it is.
//
// Threads:  one thread. The time is passed in.
// Cost:     up to kLongestLine bytes.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "runtime/clock.h"

namespace accel::supervisor {

class LineSampler {
 public:
  static constexpr std::chrono::seconds kWindow{1};
  static constexpr std::uint64_t kFirstDistance = 16;  // lines
  static constexpr std::uint64_t kMostDistance = 65'536;
  static constexpr std::size_t kLongestLine =
      4000;  // with a marker, what a pipe takes whole or not at all

  // The sink has no room: a window begins, unless one is open.
  void begin(TimePoint now);

  [[nodiscard]] bool is_active() const noexcept { return is_active_; }
  // Of the last byte that was fed: it did not end its line.
  [[nodiscard]] bool is_mid_line() const noexcept { return is_mid_line_; }

  // Ends the window when its second is over. Returns how many bytes of an unfinished line are lost by that.
  std::size_t end_if_over(TimePoint now);
  // Ends it now.
  std::size_t end();

  // offer(line)  puts a whole line into the sink; false when there is no room.
  // lose(bytes)  counts; in the order of the stream.
  // Requires: is_active().
  template <typename Offer, typename Lose>
  void feed(std::string_view bytes, Offer&& offer, Lose&& lose) {
    while (!bytes.empty()) {
      const std::size_t newline = bytes.find('\n');
      const bool ends_line = newline != std::string_view::npos;
      const std::string_view piece = bytes.substr(0, ends_line ? newline + 1 : newline);
      bytes.remove_prefix(piece.size());
      is_mid_line_ = !ends_line;
      if (const std::size_t lost = take(piece); lost > 0) lose(lost);
      if (!ends_line) continue;
      if (!candidate_.empty() && !offer(std::string_view(candidate_))) {
        lose(candidate_.size());
        widen();
      }
      next_line();
    }
  }

 private:
  std::size_t take(std::string_view piece);
  void widen();
  void next_line();

  bool is_active_ = false;
  bool is_mid_line_ = false;
  bool is_candidate_ = false;  // the current line
  TimePoint ends_at_;          // of the window
  std::uint64_t distance_ = kFirstDistance;
  std::uint64_t lines_to_skip_ = 0;  // before the next candidate
  std::string candidate_;            // as much as has come of it
};

}  // namespace accel::supervisor
