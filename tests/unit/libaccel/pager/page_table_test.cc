// The states of units, with a source that can be made to fail and to wait.

#include "libaccel/engine/pager/page_table.h"

#include <atomic>
#include <cstring>
#include <memory>
#include <mutex>
#include <random>
#include <stdexcept>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <accel/error.h>

namespace accel::pager::page_table_test {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr std::size_t kUnitBytes = 4096;

// One number for each unit, in its first bytes.
class Numbers : public PageSource {
 public:
  explicit Numbers(std::size_t count) : values(count) {
    for (std::size_t i = 0; i < count; ++i) values[i] = i + 100;
  }
  void fill(std::size_t unit, GuardRange& range) override {
    if (fails) throw std::runtime_error("the source is gone");
    ++*num_fills;
    const auto memory = range.commit();
    std::memcpy(memory.data(), &values[unit], sizeof values[unit]);
  }
  void release(std::size_t unit, GuardRange& range, std::span<const std::size_t> written) override {
    if (fails) throw std::runtime_error("the source is gone");
    {
      const std::lock_guard lock(mutex);  // other units are released at the same time
      last_written.assign(written.begin(), written.end());
    }
    if (!written.empty()) std::memcpy(&values[unit], range.begin(), sizeof values[unit]);
  }

  std::vector<std::uint64_t> values;
  std::mutex mutex;
  std::vector<std::size_t> last_written;
  std::atomic<bool> fails{false};
  std::shared_ptr<std::atomic<int>> num_fills = std::make_shared<std::atomic<int>>(0);
};

UnitLayout layout_of(std::size_t num_units) {
  std::vector<PlannedParameter> parameters;
  for (std::size_t i = 0; i < num_units; ++i)
    parameters.push_back(
        {.name = "p" + std::to_string(i), .numel = kUnitBytes, .dtype = c10::kByte});
  return lay_out(std::move(parameters), {}, kUnitBytes);
}

struct Fixture {
  explicit Fixture(std::size_t num_units, std::size_t room, int prefetch_units = 0) {
    auto made = std::make_unique<Numbers>(num_units);
    source = made.get();
    table = std::make_unique<PageTable>(
        layout_of(num_units), std::move(made), PageTableOptions{room * kUnitBytes, prefetch_units});
  }
  std::uint64_t use(std::size_t unit) {
    table->pin(unit, 0);
    std::uint64_t value = 0;
    std::memcpy(&value, table->address_of(unit), sizeof value);
    table->unpin(unit);
    return value;
  }
  void write(std::size_t unit, std::uint64_t value) {
    table->pin(unit, 0);
    std::memcpy(table->address_of(unit), &value, sizeof value);
    table->mark_written(unit, 0);
    table->unpin(unit);
  }
  std::vector<std::size_t> resident() const {
    std::vector<std::size_t> units;
    for (std::size_t unit = 0; unit < table->layout().units.size(); ++unit)
      if (table->is_resident(unit)) units.push_back(unit);
    return units;
  }
  Numbers* source = nullptr;
  std::unique_ptr<PageTable> table;
};

TEST(PageTable, FillsOnUseAndEvictsForRoom) {
  Fixture f(4, 2);
  EXPECT_THAT(f.resident(), IsEmpty());

  EXPECT_EQ(f.use(0), 100u);
  EXPECT_EQ(f.use(1), 101u);
  EXPECT_EQ(f.use(0), 100u);
  EXPECT_EQ(f.use(2), 102u);

  EXPECT_THAT(f.resident(), ElementsAre(0, 2)) << "1 was used least recently";
  const auto statistics = f.table->statistics();
  EXPECT_EQ(statistics.num_misses, 3u);
  EXPECT_EQ(statistics.num_hits, 1u);
  EXPECT_EQ(statistics.num_evictions, 1u);
  EXPECT_EQ(statistics.peak_bytes, 2 * kUnitBytes);
}

TEST(PageTable, WhatIsPinnedStays) {
  Fixture f(3, 2);
  f.table->pin(0, 0);
  (void)f.use(1);
  (void)f.use(2);

  EXPECT_THAT(f.resident(), ElementsAre(0, 2));
  f.table->evict_all();
  EXPECT_THAT(f.resident(), ElementsAre(0));
  f.table->unpin(0);
  f.table->evict_all();
  EXPECT_THAT(f.resident(), IsEmpty());
}

TEST(PageTable, AfterAPauseNothingIsFilledAheadBeforeTheNextUse) {
  Fixture f(3, 3, /*prefetch_units=*/1);
  for (const std::size_t unit : {0, 1, 2}) (void)f.use(unit);
  f.table->end_step();
  f.table->pause_prefetch();
  f.table->evict_all();
  (void)f.use(0);  // 1 follows, as in the step before
  f.table->evict_all();
  const auto num_fills = f.source->num_fills;
  const int before = *num_fills;

  f.table->resume_prefetch();
  f.table.reset();  // its thread does first what was asked of it

  EXPECT_EQ(*num_fills, before);
}

TEST(PageTable, OnlyWhatWasWrittenGoesBackToTheSource) {
  Fixture f(2, 2);
  (void)f.use(0);
  f.table->evict_all();
  EXPECT_THAT(f.source->last_written, IsEmpty());
  f.write(0, 7);
  f.table->evict_all();
  EXPECT_EQ(f.source->values[0], 7u);
  EXPECT_EQ(f.use(0), 7u);
  f.write(1, 8);
  f.source->values[1] = 9;
  f.table->discard_all();
  EXPECT_EQ(f.use(1), 9u);
}

TEST(PageTable, AFillThatFailsLeavesTheUnitEvictedAndCanBeTriedAgain) {
  Fixture f(2, 1);
  f.source->fails = true;
  EXPECT_THROW(f.table->pin(0, 0), std::runtime_error);
  EXPECT_EQ(f.table->statistics().live_bytes, 0u);
  f.source->fails = false;
  EXPECT_EQ(f.use(0), 100u);
}

TEST(PageTable, AReleaseThatFailsKeepsWhatWasWritten) {
  Fixture f(2, 1);
  f.write(0, 5);
  f.source->fails = true;
  EXPECT_THROW(f.table->evict_all(), std::runtime_error);
  EXPECT_EQ(f.use(0), 5u);
  f.source->fails = false;
  EXPECT_EQ(f.use(1), 101u);
  EXPECT_EQ(f.use(0), 5u);
}

TEST(PageTable, AnOperatorThatDoesNotFitThrowsAndOneBesideAnotherThreadGoesOver) {
  Fixture f(3, 2);
  f.table->pin(0, 0);
  f.table->pin(1, kUnitBytes);
  EXPECT_THROW(f.table->pin(2, 2 * kUnitBytes), Error) << "the same operator holds both";

  f.table->pin(2, 0);  // the operator of another thread would
  EXPECT_EQ(f.table->statistics().peak_bytes, 3 * kUnitBytes);
  for (const std::size_t unit : {0, 1, 2}) f.table->unpin(unit);
  EXPECT_EQ(f.use(0), 100u);
}

TEST(PageTable, WhatIsHeldCountsForEveryOperator) {
  Fixture f(3, 2);
  f.table->hold(0);
  f.table->hold(0);
  f.table->hold(1);
  EXPECT_THROW(f.table->pin(2, 0), Error);
  f.table->let_go(0);
  EXPECT_THROW(f.table->pin(2, 0), Error) << "held twice";
  f.table->let_go(0);
  EXPECT_EQ(f.use(2), 102u);
  f.table->let_go(1);
}

TEST(PageTable, TheThreadThatFillsAheadLeavesNoMisses) {
  Fixture f(4, 4, /*prefetch_units=*/1);
  for (const std::size_t unit : {0, 1, 2, 3}) (void)f.use(unit);
  f.table->end_step();
  const auto before = f.table->statistics();
  f.table->evict_all();

  for (const std::size_t unit : {0, 1, 2, 3}) {
    (void)f.use(unit);
    // By condition: the next unit is filled without anybody having asked for it.
    while (!f.table->is_resident((unit + 1) % 4)) std::this_thread::yield();
  }

  const auto after = f.table->statistics();
  // The first unit may be asked for before the thread gets to it; no other.
  EXPECT_EQ(after.num_fills - before.num_fills, 4u);
  EXPECT_LE(after.num_misses - before.num_misses, 1u);
  EXPECT_GE(after.num_prefetches - before.num_prefetches, 3u);
}

// Threads use, write and evict at random; every read sees the last write, and the bytes add up.
class PageTableOfThreads : public ::testing::TestWithParam<int> {};

TEST_P(PageTableOfThreads, LosesNothing) {
  constexpr std::size_t kUnits = 6;
  constexpr int kThreads = 4;
  Fixture f(kUnits, 3, GetParam());
  std::vector<std::mutex> locks(kUnits);  // of the values, which the table leaves to its users
  std::vector<std::uint64_t> expected = f.source->values;
  std::atomic<int> num_wrong{0};
  std::vector<std::jthread> threads;
  for (int t = 0; t < kThreads; ++t)
    threads.emplace_back([&, t] {
      std::mt19937 random(t);
      for (int i = 0; i < 2000; ++i) {
        const std::size_t unit = random() % kUnits;
        switch (random() % 8) {
          case 0: {
            const std::lock_guard lock(locks[unit]);
            f.write(unit, expected[unit] = random());
            break;
          }
          case 1:
            if (i % 16 == 0) f.table->evict_all();
            break;
          case 2:
            if (t == 0) f.table->end_step();
            break;
          default: {
            const std::lock_guard lock(locks[unit]);
            if (f.use(unit) != expected[unit]) ++num_wrong;
          }
        }
      }
    });
  threads.clear();

  EXPECT_EQ(num_wrong, 0);
  f.table->evict_all();
  for (std::size_t unit = 0; unit < kUnits; ++unit) EXPECT_EQ(f.use(unit), expected[unit]);
  // At most one unit more for each other thread's pin.
  EXPECT_LE(f.table->statistics().peak_bytes, (3 + kThreads) * kUnitBytes);
}

INSTANTIATE_TEST_SUITE_P(WithAndWithoutFillingAhead, PageTableOfThreads, ::testing::Values(0, 2));

}  // namespace
}  // namespace accel::pager::page_table_test
