// The look of the bar is that of tqdm in its ASCII form.
//
// The rate is the average since the start: it jumps less than a moving one, and a checkpoint in the
// middle of an epoch is part of what remains, too.

#include "libaccel/api/console/progress_display.h"

#include <algorithm>
#include <cstdio>

namespace accel {
namespace {

constexpr int kDefaultBarWidth = 10;
constexpr std::string_view kTenths = " 123456789";

std::string fixed(double value) {
  char text[64];
  std::snprintf(text, sizeof text, "%.2f", value);
  return text;
}

std::string rate_text(const ProgressLine& line) {
  const double seconds = line.elapsed.count();
  if (line.done == 0 || seconds <= 0) return "?" + std::string(line.unit) + "/s";
  const double rate = static_cast<double>(line.done) / seconds;
  if (rate >= 1) return fixed(rate) + std::string(line.unit) + "/s";
  return fixed(1 / rate) + "s/" + std::string(line.unit);
}

// Tenths of a column are shown as a digit.
std::string bar(double fraction, int width) {
  const auto tenths = static_cast<int>(fraction * width * 10);
  std::string text(static_cast<std::size_t>(tenths / 10), '#');
  if (static_cast<int>(text.size()) < width) text += kTenths[static_cast<std::size_t>(tenths % 10)];
  text.resize(static_cast<std::size_t>(width), ' ');
  return text;
}

}  // namespace

std::string clock_text(std::chrono::duration<double> time) {
  const auto seconds = static_cast<long long>(std::max(0.0, time.count()));
  char text[64];
  if (seconds >= 3600) {
    std::snprintf(
        text, sizeof text, "%lld:%02lld:%02lld", seconds / 3600, seconds / 60 % 60, seconds % 60);
  } else {
    std::snprintf(text, sizeof text, "%02lld:%02lld", seconds / 60, seconds % 60);
  }
  return text;
}

std::string render_progress(const ProgressLine& line, int width) {
  std::string head = line.desc.empty() ? "" : std::string(line.desc) + ": ";
  std::string tail;
  const std::string postfix = line.postfix.empty() ? "" : ", " + std::string(line.postfix);
  if (!line.total || *line.total <= 0) {
    tail = std::to_string(line.done) + std::string(line.unit) + " [" + clock_text(line.elapsed) +
           ", " + rate_text(line) + postfix + "]";
  } else {
    const double fraction =
        std::min(1.0, static_cast<double>(line.done) / static_cast<double>(*line.total));
    const std::string left =
        line.done == 0 ? "?"
                       : clock_text(line.elapsed * (1 - fraction) / std::max(fraction, 1e-12));
    char percent[16];
    std::snprintf(percent, sizeof percent, "%3d%%", static_cast<int>(fraction * 100));
    head += percent;
    tail = " " + std::to_string(line.done) + "/" + std::to_string(*line.total) + " [" +
           clock_text(line.elapsed) + "<" + left + ", " + rate_text(line) + postfix + "]";
    const int room = width - static_cast<int>(head.size() + tail.size()) - 2;
    const int columns = width > 0 ? room : kDefaultBarWidth;
    if (columns > 0) tail = "|" + bar(fraction, columns) + "|" + tail;
  }
  std::string text = head + tail;
  if (width > 0 && static_cast<int>(text.size()) > width)
    text.resize(static_cast<std::size_t>(width));
  return text;
}

ProgressDisplay::ProgressDisplay(ProgressOptions options,
                                 const Clock& clock,
                                 ProgressTerminal terminal)
    : options_(std::move(options)),
      clock_(clock),
      terminal_(std::move(terminal)),
      started_(clock_.now()) {
  next_paint_ =
      started_ + (terminal_.is_terminal ? options_.min_interval : options_.plain_interval);
  if (terminal_.is_terminal) paint();
}

void ProgressDisplay::update(std::int64_t steps) {
  if (closed_) return;
  done_ += steps;
  const TimePoint now = clock_.now();
  if (now < next_paint_) return;
  next_paint_ = now + (terminal_.is_terminal ? options_.min_interval : options_.plain_interval);
  paint();
}

void ProgressDisplay::close() {
  if (closed_) return;
  closed_ = true;
  if (!terminal_.is_terminal) {
    if (painted_ != done_) paint();
  } else if (options_.leave) {
    paint();
    terminal_.write("\n");
  } else {
    terminal_.write("\r\x1b[K");
  }
}

void ProgressDisplay::paint() {
  painted_ = done_;
  const std::string text = render_progress({.desc = options_.desc,
                                            .unit = options_.unit,
                                            .postfix = postfix_,
                                            .done = done_,
                                            .total = options_.total,
                                            .elapsed = clock_.now() - started_},
                                           terminal_.is_terminal ? terminal_.width() : 0);
  // One write for each paint, so that lines of other processes do not get in between.
  terminal_.write(terminal_.is_terminal ? "\r" + text + "\x1b[K" : text + "\n");
}

}  // namespace accel
