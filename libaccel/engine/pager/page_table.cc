// The word of a page (resident bit and pins) is what operators look at; the state beside it is what those look at who
// fill and evict. An evictor takes the resident bit away with a compare-and-swap that expects no pins: from then on
// operators go the slow way, through the mutex. An operator that counted itself in and found no resident bit counts
// itself out again, so the pins of an evicted page are 0 but for moments, and a filler sets the bit by an "or".
//
// Sources run without the mutex (they may copy for milliseconds, or wait for other ranks); the states filling and
// releasing keep everybody else from the unit meanwhile.

#include "libaccel/engine/pager/page_table.h"

#include <algorithm>
#include <utility>

#include <accel/error.h>

#include "libaccel/engine/pager/paging_policy.h"

namespace accel::pager {
namespace {

std::vector<GuardLabel> labels_of(const UnitLayout& layout, const Unit& unit) {
  std::vector<GuardLabel> labels;
  for (const Slot& slot : unit.slots)
    labels.push_back({unit.bytes_of(slot.offset),
                      unit.bytes_of(slot.numel),
                      layout.parameters[slot.parameter].name});
  return labels;
}

std::string first_name_of(const UnitLayout& layout, std::size_t unit) {
  return layout.parameters[layout.units[unit].slots.front().parameter].name;
}

}  // namespace

PageTable::PageTable(UnitLayout layout,
                     std::unique_ptr<PageSource> source,
                     PageTableOptions options)
    : layout_(std::move(layout)),
      options_(options),
      source_(std::move(source)),
      write_permit_(source_->write_permit()),
      pages_(std::make_unique<Page[]>(layout_.units.size())),
      is_seen_(std::make_unique<std::atomic<bool>[]>(layout_.parameters.size())),
      trace_(layout_.units.size()),
      holds_(layout_.units.size(), 0) {
  for (std::size_t u = 0; u < layout_.units.size(); ++u) {
    const Unit& unit = layout_.units[u];
    pages_[u].range = std::make_unique<GuardRange>(unit.bytes(), labels_of(layout_, unit));
    pages_[u].is_written = std::make_unique<std::atomic<bool>[]>(unit.slots.size());
    unit_bytes_.push_back(pages_[u].range->reserved_bytes());
  }
  const auto largest = std::max_element(unit_bytes_.begin(), unit_bytes_.end());
  if (largest != unit_bytes_.end() && *largest > options_.max_live_bytes && !options_.may_exceed) {
    const auto unit = static_cast<std::size_t>(largest - unit_bytes_.begin());
    throw Error(ErrorCode::kOutOfMemory,
                "max_live_bytes is " + std::to_string(options_.max_live_bytes) +
                    ", and the unit that begins with parameter '" + first_name_of(layout_, unit) +
                    "' has " + std::to_string(*largest) + " bytes",
                "give max_live_bytes at least " + std::to_string(*largest) +
                    ", or cut smaller units with unit_bytes");
  }
  if (options_.prefetch_units > 0)
    prefetcher_ = std::jthread([this](const std::stop_token& stop) { prefetch(stop); });
}

PageTable::~PageTable() = default;

std::byte* PageTable::address_of(std::size_t parameter) const noexcept {
  const SlotPlace place = layout_.places[parameter];
  const Unit& unit = layout_.units[place.unit];
  return pages_[place.unit].range->begin() + unit.bytes_of(unit.slots[place.slot].offset);
}

// ---- use ----

void PageTable::note_use(std::size_t unit) {
  current_.store(unit, std::memory_order_relaxed);
  trace_.use(unit);
  if (options_.prefetch_units > 0) {
    wants_prefetch_ = true;
    changed_.notify_all();
  }
}

void PageTable::move_on_to(std::size_t unit) {
  const Lock lock(mutex_);
  ++statistics_.num_hits;
  note_use(unit);
}

void PageTable::pin_evicted(std::size_t unit, std::size_t held_bytes) {
  Lock lock(mutex_);
  note_use(unit);
  ++statistics_.num_misses;
  Page& page = pages_[unit];
  while (page.state != State::kResident) {
    if (page.state != State::kEvicted) {
      changed_.wait(lock);
      continue;
    }
    make_room(lock, unit, held_bytes);  // others may have worked meanwhile
    if (page.state == State::kEvicted) fill(lock, unit);
  }
  page.word.fetch_add(1, std::memory_order_acquire);  // under the mutex: nobody evicts between
}

void PageTable::make_room(Lock& lock, std::size_t unit, std::size_t held_bytes) {
  while (pages_[unit].state == State::kEvicted &&
         statistics_.live_bytes + unit_bytes_[unit] > options_.max_live_bytes) {
    if (const auto victim = choose_victim(trace_, evictable())) {
      (void)try_release(lock, *victim, /*keeps_writes=*/true);
      continue;
    }
    const std::size_t needed = held_bytes + held_bytes_ + unit_bytes_[unit];
    if (needed > options_.max_live_bytes && options_.may_exceed) return;
    if (needed > options_.max_live_bytes)
      throw Error(ErrorCode::kOutOfMemory,
                  "one operator needs " + std::to_string(needed) +
                      " bytes of parameters at once, the last of them '" +
                      first_name_of(layout_, unit) + "', and max_live_bytes is " +
                      std::to_string(options_.max_live_bytes),
                  "give max_live_bytes at least " + std::to_string(needed) +
                      ", or use fewer parameters in one call");
    if (!is_busy()) return;  // the rest is pinned by other threads
    changed_.wait(lock);
  }
}

void PageTable::hold(std::size_t unit) {
  pin(unit, 0);
  const Lock lock(mutex_);
  if (holds_[unit]++ == 0) held_bytes_ += unit_bytes_[unit];
}

void PageTable::let_go(std::size_t unit) noexcept {
  {
    const Lock lock(mutex_);
    if (--holds_[unit] == 0) held_bytes_ -= unit_bytes_[unit];
  }
  unpin(unit);
}

// ---- fill and evict ----

void PageTable::fill(Lock& lock, std::size_t unit) {
  Page& page = pages_[unit];
  page.state = State::kFilling;
  statistics_.live_bytes += unit_bytes_[unit];
  statistics_.peak_bytes = std::max(statistics_.peak_bytes, statistics_.live_bytes);
  lock.unlock();
  try {
    source_->fill(unit, *page.range);
  } catch (...) {
    page.range->decommit();
    lock.lock();
    page.state = State::kEvicted;
    statistics_.live_bytes -= unit_bytes_[unit];
    changed_.notify_all();
    throw;
  }
  lock.lock();
  ++statistics_.num_fills;
  page.state = State::kResident;
  page.word.fetch_or(kResident, std::memory_order_release);
  changed_.notify_all();
}

// False when somebody pinned it in the meantime. Drops the mutex while the source works.
bool PageTable::try_release(Lock& lock, std::size_t unit, bool keeps_writes) {
  Page& page = pages_[unit];
  std::uint64_t unpinned = kResident;
  if (!page.word.compare_exchange_strong(unpinned, 0, std::memory_order_acq_rel)) return false;
  page.state = State::kReleasing;
  std::vector<std::size_t> written;
  for (std::size_t slot = 0; slot < layout_.units[unit].slots.size(); ++slot)
    if (page.is_written[slot].exchange(false, std::memory_order_relaxed) && keeps_writes)
      written.push_back(slot);
  lock.unlock();
  try {
    source_->release(unit, *page.range, written);
  } catch (...) {
    lock.lock();
    for (const std::size_t slot : written) page.is_written[slot] = true;
    page.state = State::kResident;
    page.word.fetch_or(kResident, std::memory_order_release);
    changed_.notify_all();
    throw;
  }
  page.range->decommit();
  lock.lock();
  ++statistics_.num_evictions;
  page.state = State::kEvicted;
  statistics_.live_bytes -= unit_bytes_[unit];
  changed_.notify_all();
  return true;
}

std::vector<std::size_t> PageTable::evictable() const {
  std::vector<std::size_t> units;
  for (std::size_t unit = 0; unit < layout_.units.size(); ++unit)
    if (pages_[unit].word.load(std::memory_order_relaxed) == kResident) units.push_back(unit);
  return units;
}

bool PageTable::is_busy() const {
  for (std::size_t unit = 0; unit < layout_.units.size(); ++unit)
    if (pages_[unit].state == State::kFilling || pages_[unit].state == State::kReleasing)
      return true;
  return false;
}

void PageTable::evict(bool keeps_writes) {
  Lock lock(mutex_);
  for (std::size_t unit = 0; unit < layout_.units.size(); ++unit) {
    while (pages_[unit].state == State::kFilling || pages_[unit].state == State::kReleasing)
      changed_.wait(lock);
    (void)try_release(lock, unit, keeps_writes);
  }
}

void PageTable::evict_all() {
  evict(/*keeps_writes=*/true);
}
void PageTable::discard_all() {
  evict(/*keeps_writes=*/false);
}

// ---- steps ----

void PageTable::end_step() {
  const Lock lock(mutex_);
  trace_.end_step();
  current_.store(kNone, std::memory_order_relaxed);
}

void PageTable::append_first_use(std::size_t parameter) {
  const Lock lock(mutex_);
  if (!is_seen_[parameter].exchange(true)) first_uses_.push_back(parameter);
}

std::vector<std::size_t> PageTable::first_use_order() const {
  const Lock lock(mutex_);
  return first_uses_;
}

PagerStatistics PageTable::statistics() const {
  const Lock lock(mutex_);
  PagerStatistics statistics = statistics_;
  statistics.num_deviations = trace_.num_deviations();
  return statistics;
}

void PageTable::pause_prefetch() {
  Lock lock(mutex_);
  is_paused_ = true;
  changed_.wait(lock, [this] { return !is_prefetching_; });
}

void PageTable::resume_prefetch() noexcept {
  const Lock lock(mutex_);
  is_paused_ = false;
  // What uses before or during the pause asked for, when the thread did not come to it in time: filled now, it would bring
  // back a unit of which nobody knows when it is used again.
  wants_prefetch_ = false;
}

// The thread that fills ahead. An error of the source is left for the operator that will want the unit.
void PageTable::prefetch(const std::stop_token& stop) {
  Lock lock(mutex_);
  while (changed_.wait(lock, stop, [this] { return wants_prefetch_ && !is_paused_; })) {
    wants_prefetch_ = false;
    is_prefetching_ = true;
    try {
      prefetch_next(lock);
    } catch (...) {  // NOLINT: the operator that needs the unit meets the same error
    }
    is_prefetching_ = false;
    changed_.notify_all();
  }
}

void PageTable::prefetch_next(Lock& lock) {
  std::vector<bool> is_evicted(layout_.units.size());
  for (std::size_t unit = 0; unit < is_evicted.size(); ++unit)
    is_evicted[unit] = pages_[unit].state == State::kEvicted;
  const auto unused = evictable();
  const RoomView room{unit_bytes_, unused, statistics_.live_bytes, options_.max_live_bytes};
  const auto next =
      choose_prefetch(trace_, room, is_evicted, static_cast<std::size_t>(options_.prefetch_units));
  if (!next) return;
  bool has_room = true;
  for (const std::size_t victim : next->victims)
    has_room = has_room && try_release(lock, victim, /*keeps_writes=*/true);
  has_room =
      has_room && statistics_.live_bytes + unit_bytes_[next->unit] <= options_.max_live_bytes;
  if (!has_room || pages_[next->unit].state != State::kEvicted) return;
  fill(lock, next->unit);
  ++statistics_.num_prefetches;
  wants_prefetch_ = true;  // perhaps there is room for one more
}

}  // namespace accel::pager
