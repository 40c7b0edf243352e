// StatusLine: one line below the workers' output on a terminal, which leaves no trace in it.
//
//   hidden --the cursor begins a line, nothing waits--> drawn --erase--> hidden
//
// It is drawn only where the cursor stands at the begin of a line, without a newline and shorter than the window, and is erased
// before anything else is written: so the cursor is then where it was, also for workers that move it. A worker whose output
// has a carriage return in a line draws a line of its own (tqdm): from then on none is drawn, unless that was asked for.
//
// Threads:  one. Pure: gives the bytes to be written.
// Source:   ECMA-48, EL; docs/guides/console.md; tests/unit/supervisor/status_line_test.cc.
#pragma once

#include <string>
#include <string_view>
#include <utility>

namespace accel::supervisor {

class StatusLine {
 public:
  static constexpr std::string_view kErase = "\r\x1b[K";

  // text: printable, of one row; empty: none. despite_returns: also beside workers that draw a line of their own.
  void set(std::string text, bool despite_returns) {
    text_ = std::move(text);
    despite_returns_ = despite_returns;
  }

  // To be written before output of the workers, and when nothing follows. Empty: nothing is drawn.
  [[nodiscard]] std::string_view erase() {
    const bool was_drawn = !std::exchange(drawn_, "").empty();
    return was_drawn ? kErase : std::string_view();
  }

  // What the workers wrote.
  void note_output(std::string_view bytes) {
    for (const char byte : bytes) {
      has_returns_ |= ended_in_return_ && byte != '\n' && byte != '\r';
      ended_in_return_ = byte == '\r';
    }
  }

  // What makes the terminal show what it should; empty: it does. Once that is written, call drew().
  [[nodiscard]] std::string update(bool at_line_start) const {
    const std::string& wanted = wanted_line(at_line_start);
    return wanted == drawn_ ? std::string() : std::string(kErase) + wanted;
  }
  void drew(bool at_line_start) { drawn_ = wanted_line(at_line_start); }

 private:
  [[nodiscard]] const std::string& wanted_line(bool at_line_start) const {
    static const std::string none;
    return at_line_start && (!has_returns_ || despite_returns_) ? text_ : none;
  }

  std::string text_;
  std::string drawn_;  // stands on the terminal
  bool despite_returns_ = false;
  bool has_returns_ = false;
  bool ended_in_return_ = false;
};

}  // namespace accel::supervisor
