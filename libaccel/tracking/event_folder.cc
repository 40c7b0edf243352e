#include "libaccel/tracking/event_folder.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdio>
#include <utility>

#include <unistd.h>

#include "libaccel/tracking/event_message.h"
#include "libaccel/tracking/value_text.h"
#include "runtime/text/host_name.h"

namespace accel::tracking {
namespace {

// As TensorBoard's: two files of one second differ by the process or by the number.
std::string event_file_name(double wall_time, const std::string& suffix) {
  static std::atomic<int> next_number{0};
  std::array<char, 64> name{};
  std::snprintf(
      name.data(), name.size(), "events.out.tfevents.%010lld.", static_cast<long long>(wall_time));
  return name.data() + host_name() + "." + std::to_string(::getpid()) + "." +
         std::to_string(next_number++) + suffix;
}

std::string time_name(double wall_time) {
  std::array<char, 64> name{};
  std::snprintf(name.data(), name.size(), "%.7f", wall_time);
  return name.data();
}

}  // namespace

EventFolder::EventFolder(std::filesystem::path folder, std::string suffix)
    : folder_(std::move(folder)), suffix_(std::move(suffix)) {}

AppendFile& EventFolder::file_in(const std::filesystem::path& folder, double wall_time) {
  if (const auto found = files_.find(folder); found != files_.end()) return found->second;
  AppendFile file(folder / event_file_name(wall_time, suffix_));
  file.append(version_record(wall_time));
  return files_.emplace(folder, std::move(file)).first->second;
}

void EventFolder::write(const TrackEntry& entry) {
  const double time = entry.wall_time;
  switch (entry.kind) {
    case EntryKind::kConfig:
      return write_config(entry);
    case EntryKind::kLog:
      return write_values(entry);
    case EntryKind::kImages:
      for (const auto& [tag, images] : entry.images)
        file_in(folder_, time).append(event_record(image_summary(tag, images), entry.step, time));
      return;
    case EntryKind::kHistogram:
      return file_in(folder_, time)
          .append(event_record(
              histogram_summary(entry.tag, histogram_of(entry.samples)), entry.step, time));
    case EntryKind::kStart:
    case EntryKind::kCall:
    case EntryKind::kFinish:
      return;
  }
}

void EventFolder::write_values(const TrackEntry& entry) {
  const double time = entry.wall_time;
  for (const auto& [name, value] : entry.values) {
    if (value.is_number()) {
      file_in(folder_, time)
          .append(event_record(scalar_summary(name, value.number()), entry.step, time));
    } else if (value.text() != nullptr) {
      file_in(folder_, time)
          .append(event_record(text_summary(name, *value.text()), entry.step, time));
    } else if (value.dictionary() != nullptr) {
      std::string outer = name;
      std::ranges::replace(outer, '/', '_');
      for (const auto& [inner, scalar] : *value.dictionary()) {
        if (!scalar.is_number()) continue;
        file_in(folder_ / (outer + "_" + inner), time)
            .append(event_record(scalar_summary(name, scalar.number()), entry.step, time));
      }
    }
  }
}

void EventFolder::write_config(const TrackEntry& entry) {
  const std::filesystem::path folder = folder_ / time_name(entry.wall_time);
  AppendFile& events = file_in(folder, entry.wall_time);
  for (const WireMessage& summary : hparams_summaries(entry.values))
    events.append(event_record(summary, std::nullopt, entry.wall_time));
  const auto path = folder / "hparams.yml";
  files_.try_emplace(path, path).first->second.append(yaml_lines(entry.values));
}

Backlog EventFolder::drain() {
  Backlog all;
  for (auto& [folder, file] : files_) {
    const Backlog backlog = file.drain();
    all.bytes += backlog.bytes;
    if (backlog.bytes > 0) all.error = backlog.error, all.path = backlog.path;
  }
  return all;
}

}  // namespace accel::tracking
