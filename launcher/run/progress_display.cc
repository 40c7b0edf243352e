#include "launcher/run/progress_display.h"

#include <algorithm>
#include <chrono>
#include <string_view>
#include <utility>
#include <variant>

#include <poll.h>
#include <unistd.h>

#include "launcher/text/terminal_text.h"
#include "runtime/supervisor/logs/status_line.h"
#include "runtime/write_all.h"

namespace accel::launcher {

ProgressDisplay::ProgressDisplay(supervisor::WorkerHost& host, Options options)
    : host_(host), options_(std::move(options)) {
  if (!options_.is_ours) options_.is_ours = [] { return true; };
  if (!options_.columns) options_.columns = [] { return terminal_columns(STDERR_FILENO); };
  if (!options_.has_terminal)
    options_.has_terminal = [] { return ::tcgetpgrp(STDERR_FILENO) == ::getpgrp(); };
  if (!options_.now) options_.now = [] { return SteadyClock().now(); };
}

int ProgressDisplay::milliseconds_to_look() const {
  if (options_.line == nullptr || has_ended_ || !options_.is_ours()) return -1;
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(next_look_ - options_.now());
  return static_cast<int>(std::clamp<std::int64_t>(left.count(), 0, 1000));
}

void ProgressDisplay::look() {
  if (milliseconds_to_look() != 0) return;
  next_look_ = options_.now() + std::chrono::seconds(1);
  host_.request(supervisor::TakeSnapshot{});
}

void ProgressDisplay::hear(const supervisor::HostEvent& event) {
  if (std::holds_alternative<supervisor::Restarting>(event)) return restarting();
  const auto* snapshot = std::get_if<supervisor::Snapshot>(&event);
  if (snapshot == nullptr) return;
  if (options_.line != nullptr) options_.line->take(*snapshot, options_.now());
  show();
}

void ProgressDisplay::restarting() {
  if (options_.line != nullptr) options_.line->restarting();
}

void ProgressDisplay::show() {
  if (options_.line == nullptr) return;
  const bool is_free = !has_ended_ && options_.is_ours() && options_.has_terminal() &&
                       (options_.notices == nullptr || options_.notices->waiting_fd() < 0);
  const std::string text = is_free ? options_.line->text(options_.now(), options_.columns()) : "";
  if (text == shown_) return;
  shown_ = text;
  host_.request(supervisor::ShowStatus{++num_shown_, text, options_.line->despite_returns()});
}

void ProgressDisplay::end() {
  has_ended_ = true;
  hide();
}

// Requires: the shim is gone, and nobody else writes to this terminal.
void ProgressDisplay::erase() {
  if (shown_.empty()) return;
  std::string_view erase = supervisor::StatusLine::kErase;
  shown_.clear();
  (void)write_all(STDERR_FILENO, erase);
}

// Other events that come meanwhile are taken later, in their order.
void ProgressDisplay::hide() {
  constexpr std::chrono::milliseconds kPatience{2000};
  if (shown_.empty()) return;
  host_.request(supervisor::ShowStatus{++num_shown_, "", false});
  const TimePoint until = options_.now() + kPatience;
  for (auto left = kPatience; left.count() > 0 && !lost_;
       left = std::chrono::duration_cast<std::chrono::milliseconds>(until - options_.now())) {
    auto event = host_.next_event();
    if (!event) {
      lost_ = std::move(event).error();
      erase();
    } else if (!*event) {
      pollfd ready = {host_.event_fd(), POLLIN, 0};
      ::poll(&ready, 1, static_cast<int>(left.count()));
    } else {
      const auto* shown = std::get_if<supervisor::StatusShown>(&**event);
      if (shown != nullptr && shown->number == num_shown_) break;
      held_.push_back(**std::move(event));
      if (std::holds_alternative<supervisor::JobOutcome>(held_.back())) break;  // the last one
    }
  }
  shown_.clear();
}

Result<std::optional<supervisor::HostEvent>> ProgressDisplay::next_event() {
  if (!held_.empty()) {
    std::optional<supervisor::HostEvent> event = std::move(held_.front());
    held_.pop_front();
    return event;
  }
  if (lost_) return *lost_;
  auto event = host_.next_event();
  if (!event) erase();
  return event;
}

}  // namespace accel::launcher
