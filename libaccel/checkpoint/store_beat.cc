#include "libaccel/checkpoint/store_beat.h"

#include <algorithm>
#include <cstdint>
#include <exception>
#include <utility>
#include <vector>

#include <torch/csrc/distributed/c10d/Store.hpp>

namespace accel::checkpoint {
namespace {

constexpr const char* kLeft = "left";

std::vector<std::uint8_t> bytes_of(const std::string& text) {
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
    : store_(std::move(store)),
      name_(std::move(name)),
      rank_(rank),
      neighbour_((rank + 1) % size),
      pulse_(pulse) {
  if (size == 1) return;
  store_->set(key_of(rank_), bytes_of("0"));
  thread_ = std::jthread([this](const std::stop_token& stop) { run(stop); });
}

StoreBeat::~StoreBeat() {
  if (!thread_.joinable()) return;
  thread_.request_stop();
  thread_.join();
  try {
    store_->set(key_of(rank_), bytes_of(kLeft));
  } catch (const std::exception&) {
    // Nobody is there to be told.
  }
}

std::optional<int> StoreBeat::silent_rank() const {
  if (!thread_.joinable()) return std::nullopt;
  const auto rank = read(*store_, name_ + "/silent");
  return rank ? std::optional(std::stoi(*rank)) : std::nullopt;
}

void StoreBeat::run(const std::stop_token& stop) {
  SilenceClock clock(pulse_);
  std::unique_lock lock(mutex_);
  try {
    while (!stop.stop_requested()) {
      beat(clock);
      never_.wait_for(lock, stop, pulse_.period, [] { return false; });
    }
  } catch (const std::exception&) {
    // The store is gone, which whoever waits for it learns by itself.
  }
}

void StoreBeat::beat(SilenceClock& clock) {
  store_->set(key_of(rank_), bytes_of(std::to_string(++number_)));
  // One that has not begun is not known yet.
  const auto heard = read(*store_, key_of(neighbour_));
  if (!heard || *heard == kLeft) return;
  if (clock.is_silent_for_too_long(*heard, std::chrono::steady_clock::now()))
    store_->set(name_ + "/silent", bytes_of(std::to_string(neighbour_)));
}

std::string StoreBeat::key_of(int rank) const {
  return name_ + "/beat/" + std::to_string(rank);
}

}  // namespace accel::checkpoint
