// ProgressDisplay: when a progress bar is painted, and what it looks like.
//
// Time, the terminal and the output come in from outside, so that a test needs none of them.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include <accel/progress.h>

#include "runtime/clock.h"

namespace accel {

// What a line shows.
struct ProgressLine {
  std::string_view desc;
  std::string_view unit = "it";
  std::string_view postfix;
  std::int64_t done = 0;
  std::optional<std::int64_t> total;
  std::chrono::duration<double> elapsed{0};
};

// The line, at most `width` columns wide; the bar takes what the texts leave, up to 10 columns when
// `width` is 0 (unknown). Pure.
std::string render_progress(const ProgressLine& line, int width);

// "02:05", "1:02:05".
std::string clock_text(std::chrono::duration<double> time);

// Where the line goes.
struct ProgressTerminal {
  std::function<void(std::string_view)> write;
  std::function<int()> width;  // in columns, 0: unknown; asked at each paint, since windows change
  bool is_terminal = false;
};

class ProgressDisplay {
 public:
  ProgressDisplay(ProgressOptions options, const Clock& clock, ProgressTerminal terminal);

  void update(std::int64_t steps);
  void set_postfix(std::string text) { postfix_ = std::move(text); }
  void set_description(std::string text) { options_.desc = std::move(text); }
  void close();

 private:
  void paint();

  ProgressOptions options_;
  const Clock& clock_;
  ProgressTerminal terminal_;
  TimePoint started_;
  TimePoint next_paint_;
  std::string postfix_;
  std::int64_t done_ = 0;
  std::int64_t painted_ = -1;  // what the last paint showed
  bool closed_ = false;
};

}  // namespace accel
