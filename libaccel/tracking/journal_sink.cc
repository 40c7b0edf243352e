#include "libaccel/tracking/journal_sink.h"

#include <utility>

#include <sys/file.h>

#include "libaccel/tracking/tracker_writer.h"
#include "libaccel/tracking/value_text.h"

namespace accel::tracking {
namespace {

// RFC 4648 section 4.
std::string base64_of(const std::vector<std::uint8_t>& bytes) {
  constexpr std::string_view kLetters =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string text;
  text.reserve((bytes.size() + 2) / 3 * 4);
  for (std::size_t i = 0; i < bytes.size(); i += 3) {
    std::uint32_t group = 0;
    for (std::size_t k = 0; k < 3; ++k)
      group = group << 8 | (i + k < bytes.size() ? bytes[i + k] : 0U);
    for (std::size_t k = 0; k < 4; ++k)
      text += i + k <= bytes.size() ? kLetters[group >> (18 - 6 * k) & 0x3F] : '=';
  }
  return text;
}

TrackerDict picture_values(const TrackerImages& images) {
  TrackerDict values;
  for (const auto& [name, batch] : images) {
    values.emplace_back(name,
                        TrackerDict{{"count", batch.count},
                                    {"height", batch.height},
                                    {"width", batch.width},
                                    {"channels", batch.channels},
                                    {"pixels", base64_of(batch.pixels)}});
  }
  return values;
}

std::string entry_line(const TrackEntry& entry) {
  TrackerDict line;
  switch (entry.kind) {
    case EntryKind::kConfig:
      line = {{"op", "config"}, {"values", entry.values}};
      break;
    case EntryKind::kLog:
      line = {{"op", "log"}, {"values", entry.values}, {"kwargs", entry.kwargs}};
      break;
    case EntryKind::kImages:
      line = {{"op", "images"}, {"values", picture_values(entry.images)}, {"kwargs", entry.kwargs}};
      break;
    case EntryKind::kCall:
      line = {{"op", "call"}, {"name", entry.tag}, {"kwargs", entry.kwargs}};
      break;
    case EntryKind::kStart:
    case EntryKind::kHistogram:
    case EntryKind::kFinish:
      line = {{"op", "finish"}};
      break;
  }
  if (entry.step) line.emplace_back("step", *entry.step);
  line.emplace_back("time", entry.wall_time);
  return json_text(line, NonFinite::kPython) + "\n";
}

}  // namespace

JournalSink::JournalSink(std::filesystem::path path,
                         const JournalStart& start,
                         std::shared_ptr<BridgeProcess> bridge)
    : tracker_(start.tracker), file_(std::move(path)), bridge_(std::move(bridge)) {
  file_.append(
      json_text(TrackerDict{{"op", "start"},
                            {"tracker", start.tracker},
                            {"project", start.project},
                            {"logging_dir", start.logging_dir.empty() ? "." : start.logging_dir},
                            {"kwargs", start.kwargs}},
                NonFinite::kPython) +
      "\n");
}

void JournalSink::write(const TrackEntry& entry) {
  if (entry.kind == EntryKind::kStart || (is_done_ && !has_failed_)) return;
  file_.append(entry_line(entry));
  has_grown_ = true;
}

Backlog JournalSink::drain() {
  const Backlog backlog = file_.drain();
  if (bridge_ == nullptr || file_.fd() < 0) return backlog;
  if (!is_served_ && backlog.bytes == 0) {
    ::flock(file_.fd(), LOCK_EX | LOCK_NB);
    bridge_->serve(file_.path().string());
    is_served_ = true;
  } else if (is_served_ && std::exchange(has_grown_, false)) {
    bridge_->wake();
  }
  if (is_served_) hear();
  return backlog;
}

void JournalSink::hear() {
  const BridgeProcess::News news = bridge_->news_of(file_.path().string());
  TrackerWriter& writer = TrackerWriter::of_process();
  for (const std::string& notice : news.notices)
    writer.notify("the tracker " + tracker_ + ": " + notice);
  if (!news.error.empty()) {
    writer.notify("the tracker " + tracker_ + " is away: " + news.error +
                  "; its entries are kept in " + file_.path().string() +
                  ", and the next run with this tracker and logging_dir replays them");
    has_failed_ = true;
    end();
  } else if (news.is_done) {
    end();
  }
}

void JournalSink::end() {
  bridge_->leave(file_.path().string());
  bridge_.reset();
  is_done_ = true;
}

}  // namespace accel::tracking
