#include "libaccel/tracking/tracker_writer.h"

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <system_error>
#include <thread>
#include <utility>

#include <pthread.h>

#include <accel/error.h>

#include "runtime/wall_clock.h"

namespace accel::tracking {
namespace {

std::size_t value_bytes(const TrackerValue& value);

std::size_t dictionary_bytes(const TrackerDict& values) {
  std::size_t bytes = 0;
  for (const auto& [name, value] : values) bytes += name.size() + value_bytes(value);
  return bytes;
}

std::size_t value_bytes(const TrackerValue& value) {
  std::size_t bytes = sizeof value;
  if (value.text() != nullptr) bytes += value.text()->size();
  if (value.dictionary() != nullptr) bytes += dictionary_bytes(*value.dictionary());
  if (const auto* list = std::get_if<TrackerList>(&value.data()))
    for (const TrackerValue& each : *list) bytes += value_bytes(each);
  return bytes;
}

}  // namespace

std::size_t bytes_of(const TrackEntry& entry) {
  std::size_t bytes = sizeof entry + dictionary_bytes(entry.values) +
                      dictionary_bytes(entry.kwargs) + entry.samples.size() * sizeof(double);
  for (const auto& [name, images] : entry.images) bytes += name.size() + images.pixels.size();
  return bytes;
}

TrackerWriter::~TrackerWriter() = default;

TrackerWriter& TrackerWriter::of_process() {
  static TrackerWriter& writer = *new TrackerWriter;
  return writer;
}

void TrackerWriter::hand_over(std::shared_ptr<TrackSink> sink, TrackEntry entry) {
  entry.wall_time = seconds_since_1970();
  const std::size_t bytes = bytes_of(entry);
  std::unique_lock lock(mutex_);
  const bool has_room = queued_bytes_ + backlog_bytes_ + bytes <= most_held_bytes_;
  if (!has_room && entry.kind != EntryKind::kFinish) {
    ++dropped_;
    return;
  }
  queue_.push_back({std::move(sink), std::move(entry)});
  queued_bytes_ += bytes;
  ++handed_;
  if (!has_thread_) start_thread();
  lock.unlock();  // or the thread would wake to wait for it
  wake_.notify_one();
}

void TrackerWriter::start_thread() {
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);  // the program's signals go to the program's threads
  std::thread([this] {
    pthread_setname_np(pthread_self(), "accel-trackers");
    run();
  }).detach();
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  has_thread_ = true;
}

void TrackerWriter::run() {
  Held held;
  std::unique_lock lock(mutex_);
  for (;;) {
    const auto has_work = [this] { return !queue_.empty() || is_woken_ || is_stopping_; };
    if (held.bytes > 0 || held.needs_tending) {
      wake_.wait_for(lock, kTendPeriod, has_work);
    } else {
      wake_.wait(lock, has_work);
    }
    const std::vector<Handed> batch = std::exchange(queue_, {});
    const bool is_last = is_stopping_ && batch.empty();
    is_woken_ = false;
    lock.unlock();
    write(batch);
    held = drain();
    lock.lock();
    queued_bytes_ = 0;
    for (const Handed& handed : queue_) queued_bytes_ += bytes_of(handed.entry);
    backlog_bytes_ = held.bytes;
    written_ += batch.size();
    settled_.notify_all();
    if (!is_last) continue;
    is_stopped_ = true;
    settled_.notify_all();
    return;
  }
}

void TrackerWriter::write(const std::vector<Handed>& batch) {
  for (const Handed& handed : batch) {
    if (std::ranges::find(sinks_, handed.sink) == sinks_.end()) sinks_.push_back(handed.sink);
    try {
      handed.sink->write(handed.entry);
    } catch (const std::exception& error) {
      notify(std::string("an entry of a tracker is lost: ") + error.what());
    }
  }
}

TrackerWriter::Held TrackerWriter::drain() {
  Held held;
  Backlog largest;
  std::vector<std::shared_ptr<TrackSink>> kept;
  for (const auto& sink : sinks_) {
    const Backlog backlog = sink->drain();
    held.bytes += backlog.bytes;
    held.needs_tending |= sink->needs_tending();
    if (backlog.bytes > largest.bytes) largest = backlog;
    if (backlog.bytes > 0 || sink->needs_tending()) kept.push_back(sink);
  }
  sinks_ = std::move(kept);
  report(largest);
  return held;
}

void TrackerWriter::report(const Backlog& backlog) {
  const std::uint64_t drops = dropped();
  if (backlog.bytes > 0 && !has_reported_) {
    notify("entries of trackers wait in memory: cannot write " + backlog.path + ": " +
           errno_text(backlog.error) + "; up to " + std::to_string(most_held_bytes_ >> 20) +
           " MiB are kept, and tried again until the disk takes them");
  }
  if (drops > 0 && reported_drops_ == 0)
    notify("entries of trackers are lost: " + std::to_string(most_held_bytes_ >> 20) +
           " MiB of them wait already");
  if (backlog.bytes == 0 && has_reported_)
    notify("entries of trackers are written again; lost since the start: " + std::to_string(drops));
  has_reported_ = backlog.bytes > 0;
  reported_drops_ = drops;
}

bool TrackerWriter::flush(TimePoint deadline) {
  std::unique_lock lock(mutex_);
  const std::uint64_t wanted = handed_;
  return settled_.wait_until(
      lock, deadline, [&] { return written_ >= wanted && backlog_bytes_ == 0; });
}

bool TrackerWriter::settle(const TrackSink& sink, TimePoint deadline) {
  if (!flush(deadline)) return false;
  std::unique_lock lock(mutex_);
  return settled_.wait_until(lock, deadline, [&] { return sink.is_done(); });
}

void TrackerWriter::set_notice(Notice notice) {
  const std::lock_guard lock(mutex_);
  notice_ = std::move(notice);
}

void TrackerWriter::notify(const std::string& text) {
  Notice notice;
  {
    const std::lock_guard lock(mutex_);
    notice = notice_;
  }
  try {
    if (notice) return notice(text);
  } catch (const std::exception&) {  // a logger after the process left its job
  }
  std::fprintf(stderr, "accel: %s\n", text.c_str());
}

void TrackerWriter::wake() {
  const std::lock_guard lock(mutex_);
  is_woken_ = true;
  wake_.notify_one();
}

void TrackerWriter::stop() {
  std::unique_lock lock(mutex_);
  if (!has_thread_) return;
  is_stopping_ = true;
  wake_.notify_one();
  settled_.wait(lock, [this] { return is_stopped_; });
}

std::uint64_t TrackerWriter::dropped() const {
  const std::lock_guard lock(mutex_);
  return dropped_;
}

}  // namespace accel::tracking
