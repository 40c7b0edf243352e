// How weights come and go: MADV_POPULATE_READ brings the pages of a mapping in and maps them, some MiB at a time, so that the thread
// can turn to what an operator waits for. MADV_PAGEOUT takes them away, out of the page cache too where the user may write to the file;
// MADV_DONTNEED takes them from the process alone. Both lose nothing: the values are in the file.
//
// The state of a weight is what this thread did to it. The kernel may take pages on its own when memory is short; an operator
// then reads them where they lie.

#include "libaccel/engine/pager/read_ahead.h"

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>

#include <sys/mman.h>
#include <sys/types.h>
#include <unistd.h>

#include "libaccel/engine/pager/forward_order.h"
#include "libaccel/engine/pager/paging_policy.h"

namespace accel::pager {
namespace {

constexpr std::size_t kPieceBytes = 16U << 20;
// How many weights ahead; with biases and norms among them, some ten large ones.
constexpr std::size_t kDepth = 32;
constexpr std::size_t kNone = std::numeric_limits<std::size_t>::max();

void drop(const MappedWeight& weight) noexcept {
  (void)::madvise(weight.begin, weight.bytes, MADV_PAGEOUT);
  (void)::madvise(weight.begin, weight.bytes, MADV_DONTNEED);
}

}  // namespace

class ReadAhead::Reader {
 public:
  Reader(std::vector<MappedWeight> weights, std::size_t max_bytes)
      : weights_(std::move(weights)),
        order_(weights_.size()),
        states_(weights_.size(), State::kEvicted),
        process_(::getpid()) {
    std::size_t largest = 0;
    for (const MappedWeight& weight : weights_) {
      sizes_.push_back(weight.bytes);
      largest = std::max(largest, weight.bytes);
    }
    max_bytes_ = std::max(max_bytes, 2 * largest);
  }

  [[nodiscard]] bool is_of_this_process() const { return ::getpid() == process_; }

  void use(std::size_t weight) {
    if (last_used_.load(std::memory_order_relaxed) == weight || !is_of_this_process()) return;
    std::unique_lock lock(mutex_);
    last_used_.store(weight, std::memory_order_relaxed);
    order_.use(weight);
    if (states_[weight] == State::kRowsAlone) states_[weight] = State::kEvicted;
    if (states_[weight] == State::kResident) {
      if (may_have_work()) wake();
      return;
    }
    if (states_[weight] == State::kRetired) return;
    ++statistics_.num_waits;
    wanted_.push_back(weight);
    wake();
    arrived_.wait(lock, [&] {
      return states_[weight] != State::kEvicted && states_[weight] != State::kRead;
    });
    wanted_.erase(std::ranges::find(wanted_, weight));
    if (may_have_work()) wake();
  }

  void use_rows(std::size_t weight) {
    if (!is_of_this_process()) return;
    const std::lock_guard lock(mutex_);
    order_.use_rows(weight);
    if (states_[weight] == State::kEvicted) states_[weight] = State::kRowsAlone;
  }

  void retire(std::size_t weight) {
    if (!is_of_this_process()) return;
    std::unique_lock lock(mutex_);
    if (states_[weight] == State::kResident) live_bytes_ -= sizes_[weight];
    states_[weight] = State::kRetired;
    arrived_.notify_all();
    arrived_.wait(lock, [&] { return std::ranges::count(busy_, weight) == 0; });
  }

  void stop() {
    {
      const std::lock_guard lock(mutex_);
      is_stopping_ = true;
      if (!thread_.joinable()) return;
      work_.notify_one();
    }
    thread_.join();
  }

  // In a forked process: there is no thread to be joined.
  void abandon() {
    if (thread_.joinable()) thread_.detach();
  }

  [[nodiscard]] Statistics statistics() const {
    const std::lock_guard lock(mutex_);
    return statistics_;
  }

 private:
  // kRead: being read. kRowsAlone: not there, and not to be read ahead. kRetired: its pages are gone.
  enum class State : std::uint8_t { kEvicted, kRead, kResident, kRowsAlone, kRetired };

  // The thread begins with the first use, when it is known which tables are read by rows.
  void wake() {
    has_work_ = true;
    if (!thread_.joinable()) thread_ = std::thread([this] { run(); });
    work_.notify_one();
  }

  [[nodiscard]] bool may_have_work() const {
    return std::ranges::count(states_, State::kEvicted) > 0;
  }

  void run() {
    std::unique_lock lock(mutex_);
    while (!is_stopping_) {
      const std::optional<Prefetch> next = choose();
      if (!next) {
        has_work_ = false;
        work_.wait(lock, [&] { return is_stopping_ || has_work_; });
        continue;
      }
      fetch(*next, lock);
    }
  }

  // What an operator waits for, else what comes next.
  std::optional<Prefetch> choose() {
    std::vector<std::size_t> evictable;
    std::vector<bool> is_evicted(weights_.size());
    for (std::size_t i = 0; i < weights_.size(); ++i) {
      is_evicted[i] = states_[i] == State::kEvicted;
      if (states_[i] == State::kResident && !is_wanted(i)) evictable.push_back(i);
    }
    if (const auto first = first_wanted()) {
      Prefetch urgent{*first, {}};
      std::size_t live = live_bytes_;
      while (live + sizes_[urgent.unit] > max_bytes_) {
        const auto victim = choose_victim(order_.trace(), evictable);
        if (!victim) break;
        live -= sizes_[*victim];
        urgent.victims.push_back(*victim);
        std::erase(evictable, *victim);
      }
      return urgent;
    }
    return choose_prefetch(
        order_.trace(), {sizes_, evictable, live_bytes_, max_bytes_}, is_evicted, kDepth);
  }

  [[nodiscard]] bool is_wanted(std::size_t weight) const {
    return std::ranges::count(wanted_, weight) > 0;
  }

  [[nodiscard]] std::optional<std::size_t> first_wanted() const {
    const auto first = std::ranges::find_if(
        wanted_, [&](std::size_t weight) { return states_[weight] == State::kEvicted; });
    return first == wanted_.end() ? std::nullopt : std::optional(*first);
  }

  void fetch(const Prefetch& next, std::unique_lock<std::mutex>& lock) {
    busy_ = next.victims;
    busy_.push_back(next.unit);
    for (const std::size_t victim : next.victims) {
      states_[victim] = State::kEvicted;
      live_bytes_ -= sizes_[victim];
    }
    states_[next.unit] = State::kRead;
    live_bytes_ += sizes_[next.unit];
    statistics_.peak_bytes = std::max(statistics_.peak_bytes, live_bytes_);
    ++statistics_.num_reads;
    lock.unlock();
    for (const std::size_t victim : next.victims) drop(weights_[victim]);
    const bool is_whole = read(next.unit);
    lock.lock();
    if (states_[next.unit] == State::kRead)
      states_[next.unit] = is_whole ? State::kResident : State::kEvicted;
    if (!is_whole || states_[next.unit] != State::kResident) live_bytes_ -= sizes_[next.unit];
    busy_.clear();
    arrived_.notify_all();
  }

  // Whether all of it; else it is not wanted any more, or another one is. Nothing waits for a page that cannot be read: the operator
  // meets that.
  bool read(std::size_t weight) {
    const MappedWeight& pages = weights_[weight];
    for (std::size_t at = 0; at < pages.bytes; at += kPieceBytes) {
      (void)::madvise(
          pages.begin + at, std::min(kPieceBytes, pages.bytes - at), MADV_POPULATE_READ);
      const std::lock_guard lock(mutex_);
      const bool is_other_wanted = !is_wanted(weight) && first_wanted();
      if (is_stopping_ || states_[weight] == State::kRetired || is_other_wanted) return false;
    }
    return true;
  }

  const std::vector<MappedWeight> weights_;
  std::vector<std::size_t> sizes_;
  std::size_t max_bytes_ = 0;

  mutable std::mutex mutex_;
  std::condition_variable work_;
  std::condition_variable arrived_;
  ForwardOrder order_;
  std::vector<State> states_;
  std::vector<std::size_t> wanted_;  // by operators that wait, in the order of their coming
  std::vector<std::size_t> busy_;    // whose pages the thread is at
  std::size_t live_bytes_ = 0;
  Statistics statistics_;
  bool has_work_ = false;
  bool is_stopping_ = false;

  std::atomic<std::size_t> last_used_{kNone};
  const pid_t process_;
  std::thread thread_;
};

ReadAhead::ReadAhead(std::vector<MappedWeight> weights, std::size_t max_bytes)
    : reader_(std::make_unique<Reader>(std::move(weights), max_bytes)) {}

ReadAhead::~ReadAhead() {
  if (reader_->is_of_this_process()) {
    reader_->stop();
    return;
  }
  reader_->abandon();
  (void)reader_.release();  // NOLINT: its thread waits for ever, as this process sees it
}

void ReadAhead::use(std::size_t weight) {
  reader_->use(weight);
}

void ReadAhead::use_rows(std::size_t weight) {
  reader_->use_rows(weight);
}

void ReadAhead::retire(std::size_t weight) {
  reader_->retire(weight);
}

ReadAhead::Statistics ReadAhead::statistics() const {
  return reader_->statistics();
}

}  // namespace accel::pager
