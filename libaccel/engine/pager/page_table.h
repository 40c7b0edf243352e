// PageTable: which units are in memory, who uses them, and how they come and go under a budget of bytes.
//
//   state     | an operator uses it          | room is needed               | it may be fetched ahead
//   evicted   | filling, then resident       | -                            | filling, then resident
//   filling   | the operator waits           | -                            | -
//   resident  | its pins count up            | no pins: releasing, evicted  | -
//   releasing | the operator waits; filling  | -                            | -
//
// An operator pins what it uses while it runs, so nothing leaves under it; operators that run inside it, and other
// threads, pin on top. Whoever needs room evicts units without pins (paging_policy.h says which). When there are none,
// an operator whose own units do not fit into the budget throws; one that meets the pins of other threads goes over the
// budget rather than wait, because those may wait for it (statistics show it: peak_bytes).
//
// Threads:  all of it, from any thread. A use of the unit that was used last takes no lock: one atomic addition at its
//           begin and one at its end.
// Cost:     bytes of resident units, each rounded up to pages, at most max_live_bytes but for the case above.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <mutex>
#include <stop_token>
#include <string>
#include <thread>
#include <vector>

#include "libaccel/engine/pager/guard_memory.h"
#include "libaccel/engine/pager/page_source.h"
#include "libaccel/engine/pager/step_trace.h"
#include "libaccel/tensors/unit_layout.h"

namespace accel::pager {

struct PageTableOptions {
  std::size_t max_live_bytes = std::numeric_limits<std::size_t>::max();
  int prefetch_units =
      0;  // how far ahead a thread of its own fills units; 0: there is no such thread
  // An operator that needs more than max_live_bytes at once goes over it instead of failing.
  bool may_exceed = false;
};

struct PagerStatistics {
  std::uint64_t num_fills = 0;       // all of them
  std::uint64_t num_prefetches = 0;  // those ahead of their use
  std::uint64_t num_misses = 0;      // uses that had to wait for a fill
  std::uint64_t num_hits = 0;        // uses of another unit than the one before that had not
  std::uint64_t num_evictions = 0;
  std::uint64_t num_deviations = 0;  // uses that were not expected from the step before
  std::size_t live_bytes = 0;
  std::size_t peak_bytes = 0;
};

class PageTable {
 public:
  // Throws kOutOfMemory when the budget cannot hold the largest unit and may not be exceeded; the remedy says the smallest
  // that can.
  PageTable(UnitLayout layout, std::unique_ptr<PageSource> source, PageTableOptions options);
  ~PageTable();
  PageTable(const PageTable&) = delete;
  PageTable& operator=(const PageTable&) = delete;

  // Makes the unit resident and keeps it so until unpin(). held_bytes: of the other units that the caller has pinned for
  // the same operator. Throws what the source throws; kOutOfMemory, see above.
  void pin(std::size_t unit, std::size_t held_bytes) {
    if ((pages_[unit].word.fetch_add(1, std::memory_order_acquire) & kResident) == 0) {
      pages_[unit].word.fetch_sub(1, std::memory_order_relaxed);
      pin_evicted(unit, held_bytes);
    } else if (current_.load(std::memory_order_relaxed) != unit) {
      move_on_to(unit);
    }
  }
  void unpin(std::size_t unit) noexcept {
    pages_[unit].word.fetch_sub(1, std::memory_order_release);
  }

  // The same for code of the program's own; what it holds counts against the budget for every operator.
  void hold(std::size_t unit);
  void let_go(std::size_t unit) noexcept;

  // The slot's values were or will be changed. Requires: its unit is pinned.
  void mark_written(std::size_t unit, std::size_t slot) noexcept {
    pages_[unit].is_written[slot].store(true, std::memory_order_relaxed);
  }

  // Evicts all units that nobody uses; what was written goes to the source. Throws what the source throws.
  void evict_all();
  // The same, but what was written is lost: for values that changed in the source.
  void discard_all();
  void end_step();

  // Between them nothing is filled ahead, nor afterwards until the next use. pause_prefetch() returns when what was begun
  // has ended.
  void pause_prefetch();
  void resume_prefetch() noexcept;

  // The first operator of a parameter since construction; the order becomes that of the units. Cheap to call again.
  void note_first_use(std::size_t parameter) {
    if (!is_seen_[parameter].load(std::memory_order_relaxed)) append_first_use(parameter);
  }
  [[nodiscard]] std::vector<std::size_t> first_use_order() const;

  [[nodiscard]] const UnitLayout& layout() const noexcept { return layout_; }
  [[nodiscard]] PageSource& source() noexcept { return *source_; }
  [[nodiscard]] const WritePermit* write_permit() const noexcept { return write_permit_; }
  [[nodiscard]] std::byte* address_of(std::size_t parameter) const noexcept;
  [[nodiscard]] std::size_t bytes_of(std::size_t unit) const noexcept { return unit_bytes_[unit]; }
  [[nodiscard]] bool is_resident(std::size_t unit) const noexcept {
    return (pages_[unit].word.load(std::memory_order_acquire) & kResident) != 0;
  }
  [[nodiscard]] PagerStatistics statistics() const;

 private:
  enum class State { kEvicted, kFilling, kResident, kReleasing };
  static constexpr std::uint64_t kResident = std::uint64_t{1}
                                             << 63;  // below it: the number of pins
  static constexpr std::size_t kNone = std::numeric_limits<std::size_t>::max();

  struct Page {
    std::atomic<std::uint64_t> word{0};
    State state = State::kEvicted;  // under mutex_
    std::unique_ptr<GuardRange> range;
    std::unique_ptr<std::atomic<bool>[]> is_written;  // by slot
  };
  using Lock = std::unique_lock<std::mutex>;

  void pin_evicted(std::size_t unit, std::size_t held_bytes);
  void move_on_to(std::size_t unit);
  void append_first_use(std::size_t parameter);
  void note_use(std::size_t unit);
  void make_room(Lock& lock, std::size_t unit, std::size_t held_bytes);
  void fill(Lock& lock, std::size_t unit);
  bool try_release(Lock& lock, std::size_t unit, bool keeps_writes);
  void evict(bool keeps_writes);
  [[nodiscard]] std::vector<std::size_t> evictable() const;
  [[nodiscard]] bool is_busy() const;
  void prefetch(const std::stop_token& stop);
  void prefetch_next(Lock& lock);

  const UnitLayout layout_;
  const PageTableOptions options_;
  const std::unique_ptr<PageSource> source_;
  const WritePermit* const write_permit_;  // the source's
  std::vector<std::size_t> unit_bytes_;    // of memory, whole pages
  std::unique_ptr<Page[]> pages_;
  std::atomic<std::size_t> current_{kNone};  // the unit that was used last
  std::unique_ptr<std::atomic<bool>[]> is_seen_;

  mutable std::mutex mutex_;  // of what follows; never held while a source works
  std::condition_variable_any changed_;
  StepTrace trace_;
  std::vector<std::size_t> first_uses_;
  std::size_t held_bytes_ = 0;  // of units that hold() pinned
  std::vector<std::size_t> holds_;
  PagerStatistics statistics_;
  bool wants_prefetch_ = false;
  bool is_prefetching_ = false;
  bool is_paused_ = false;
  std::jthread prefetcher_;  // last: it uses all of the above
};

}  // namespace accel::pager
