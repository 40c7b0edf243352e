#include "libaccel/engine/checkpoint/ranks/store_beat.h"

#include <algorithm>
#include <cstdint>
#include <exception>
#include <sstream>
#include <utility>
#include <vector>

#include <torch/csrc/distributed/c10d/Store.hpp>

namespace accel::checkpoint {
namespace {

constexpr const char* kFarewellBeat = "left";
// Ranks begin together: one that does not is as silent as one that does not go on.
constexpr const char* kNotBegun = "";

std::vector<std::uint8_t> store_value(const std::string& text) {
  return {text.begin(), text.end()};
}

// Without waiting for a key that is not there.
std::optional<std::string> read(c10d::Store& store, const std::string& key) {
  if (!store.check({key})) return std::nullopt;
  const std::vector<std::uint8_t> value = store.get(key);
  return std::string(value.begin(), value.end());
}

}  // namespace

bool SilenceClock::is_silent_for_too_long(const std::string& beat, TimePoint now) {
  const auto since_last_look = std::min<std::chrono::steady_clock::duration>(
      now - last_look_.value_or(now), 2 * pulse_.period);
  silence_ = beat == beat_ ? silence_ + since_last_look : SilenceClock::TimePoint::duration{0};
  beat_ = beat;
  last_look_ = now;
  return silence_ > pulse_.longest_silence;
}

StoreBeat::StoreBeat(
    c10::intrusive_ptr<c10d::Store> store, std::string name, int rank, int size, const Pulse& pulse)
    : store_(std::move(store)), name_(std::move(name)), rank_(rank), size_(size), pulse_(pulse) {
  if (size == 1) return;
  store_->set(key_of(rank_), store_value("0"));
  thread_ = std::jthread([this](const std::stop_token& stop) { run(stop); });
}

StoreBeat::~StoreBeat() {
  if (!thread_.joinable()) return;
  thread_.request_stop();
  thread_.join();
  try {
    store_->set(key_of(rank_), store_value(kFarewellBeat));
  } catch (const std::exception&) {
    // Nobody is there to be told.
  }
}

std::vector<int> StoreBeat::silent_ranks() {
  std::vector<int> ranks;
  if (!thread_.joinable()) return ranks;
  for (const std::int64_t end = store_->add(list_key(), 0); num_counted_ < end;)
    unread_.insert(++num_counted_);
  // What is not there yet may never be: who counted it may have died.
  std::erase_if(unread_, [&](std::int64_t number) {
    const auto entry = read(*store_, list_key(number));
    if (!entry) return false;
    std::istringstream words(*entry);
    Silence& silence = silences_.emplace_back();
    words >> silence.rank >> silence.last_beat;
    return true;
  });
  // Numbers grow: what has ended does not begin again.
  std::erase_if(silences_, [&](const Silence& silence) {
    return read(*store_, key_of(silence.rank)).value_or(kNotBegun) != silence.last_beat;
  });
  for (const Silence& silence : silences_) ranks.push_back(silence.rank);
  return ranks;
}

void StoreBeat::run(const std::stop_token& stop) {
  std::unique_lock lock(mutex_);
  try {
    while (!stop.stop_requested()) {
      beat();
      never_.wait_for(lock, stop, pulse_.period, [] { return false; });
    }
  } catch (const std::exception&) {
    // The store is gone, which whoever waits for it learns by itself.
  }
}

void StoreBeat::beat() {
  store_->set(key_of(rank_), store_value(std::to_string(++number_)));
  for (int steps = 1; steps < size_; ++steps) {
    const int rank = (rank_ + steps) % size_;
    const std::string heard = read(*store_, key_of(rank)).value_or(kNotBegun);
    if (heard == kFarewellBeat) continue;
    SilenceClock& clock = clocks_.try_emplace(rank, pulse_).first->second;
    if (clock.is_silent_for_too_long(heard, std::chrono::steady_clock::now()))
      report_silence(rank, heard);
    if (!clock.is_silent()) return;
  }
}

void StoreBeat::report_silence(int rank, const std::string& last_beat) {
  const auto [said, is_first] = reported_.try_emplace(rank, last_beat);
  if (!is_first && std::exchange(said->second, last_beat) == last_beat) return;
  const std::int64_t number = store_->add(list_key(), 1);
  store_->set(list_key(number), store_value(std::to_string(rank) + " " + last_beat));
}

std::string StoreBeat::list_key() const {
  return name_ + "/silences";
}

std::string StoreBeat::list_key(std::int64_t number) const {
  return list_key() + "/" + std::to_string(number);
}

std::string StoreBeat::key_of(int rank) const {
  return name_ + "/beat/" + std::to_string(rank);
}

}  // namespace accel::checkpoint
