#include "runtime/supervisor/lines/line_merger.h"

#include <algorithm>
#include <utility>

namespace accel::supervisor {

void LineMerger::add(StreamId stream, std::string prefix, std::chrono::milliseconds patience) {
  sources_[stream] = Source{.prefix = std::move(prefix), .patience = patience};
}

void LineMerger::feed(StreamId stream, std::string_view bytes, std::string& out) {
  Source& source = sources_.at(stream);
  source.paused_since.reset();
  if (source.may_skip > 0) {
    const std::size_t newline = bytes.find('\n');
    const bool is_end_here = newline < source.may_skip;
    const std::size_t skipped = is_end_here ? newline + 1 : std::min(bytes.size(), source.may_skip);
    source.may_skip = is_end_here ? 0 : source.may_skip - skipped;
    skipped_ += skipped;
    bytes.remove_prefix(skipped);
  }
  if (bytes.empty()) return;

  const std::size_t last_newline = bytes.rfind('\n');
  if (last_newline != std::string_view::npos) {
    show_unfinished(stream, source, out);
    show(stream, source, bytes.substr(0, last_newline + 1), out);
    bytes.remove_prefix(last_newline + 1);
  }
  if (bytes.empty()) return;
  source.unfinished += bytes;
  if (source.unfinished.size() >= kMaxLine) show_unfinished(stream, source, out);
}

void LineMerger::pause(StreamId stream, TimePoint now) {
  Source& source = sources_.at(stream);
  if (!source.paused_since) source.paused_since = now;
}

void LineMerger::flush_waiting(TimePoint now, std::string& out) {
  for (auto& [id, source] : sources_) {
    const bool is_due = source.paused_since && now - *source.paused_since >= source.patience;
    if (is_due && may_show_unfinished(id)) show_unfinished(id, source, out);
  }
}

std::optional<TimePoint> LineMerger::next_deadline() const {
  std::optional<TimePoint> earliest;
  for (const auto& [id, source] : sources_) {
    if (source.unfinished.empty() || !source.paused_since || !may_show_unfinished(id)) continue;
    const TimePoint due = *source.paused_since + source.patience;
    if (!earliest || due < *earliest) earliest = due;
  }
  return earliest;
}

void LineMerger::finish(StreamId stream, std::string& out) {
  const auto found = sources_.find(stream);
  if (found == sources_.end()) return;
  show_unfinished(stream, found->second, out);
  if (open_line_ == stream) open_line_.reset();
  sources_.erase(found);
}

std::size_t LineMerger::drop(StreamId stream, std::string_view bytes) {
  const std::size_t lost = drop_line(stream) + bytes.size();
  sources_.at(stream).may_skip = bytes.ends_with('\n') ? 0 : kMaxLine;
  return lost;
}

std::size_t LineMerger::drop_line(StreamId stream) {
  Source& source = sources_.at(stream);
  const std::size_t lost = source.unfinished.size();
  source.unfinished.clear();
  source.may_skip = 0;
  source.mid_line = false;
  return lost;
}

std::size_t LineMerger::take_skipped() {
  return std::exchange(skipped_, 0);
}

void LineMerger::note(std::string_view line, std::string& out) {
  if (open_line_) out += '\n';
  open_line_.reset();
  out += line;
  out += '\n';
}

void LineMerger::show_unfinished(StreamId id, Source& source, std::string& out) {
  if (source.unfinished.empty()) return;
  show(id, source, source.unfinished, out);
  source.unfinished.clear();
  if (source.unfinished.capacity() > kMaxLine / 4) source.unfinished.shrink_to_fit();
}

void LineMerger::show(StreamId id, Source& source, std::string_view text, std::string& out) {
  const bool ends_line = text.back() == '\n';
  if (source.prefix.empty()) {
    out += text;
  } else {
    while (!text.empty()) {
      if (!source.mid_line) out += source.prefix;
      const std::size_t newline = text.find('\n');
      const std::size_t length = newline == std::string_view::npos ? text.size() : newline + 1;
      out += text.substr(0, length);
      text.remove_prefix(length);
      source.mid_line = newline == std::string_view::npos;
    }
  }
  source.mid_line = !ends_line;
  if (ends_line) {
    open_line_.reset();
  } else {
    open_line_ = id;
  }
}

bool LineMerger::may_show_unfinished(StreamId id) const {
  return !open_line_ || *open_line_ == id;
}

}  // namespace accel::supervisor
