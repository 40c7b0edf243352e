// Where ranks stop: every order in which two and three of them may read and write the word, and threads.

#include "libaccel/engine/shm/group/stop_word.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "tests/support/test_budget.h"

namespace accel::shm::stop_word_test {
namespace {

// One rank of the model, between two accesses to the word.
struct Rank {
  std::uint8_t boundary = 0;  // that it has reached
  std::uint8_t seen = 0;      // what it has read there, once it is looking
  bool is_looking = false;
  bool is_asked = false;    // a request has arrived
  bool brings_ask = false;  // it had when the rank reached the boundary
  bool has_stopped = false;

  friend auto operator<=>(const Rank&, const Rank&) = default;
};

struct World {
  std::uint8_t word = 0;
  std::array<Rank, 3> ranks{};

  friend auto operator<=>(const World&, const World&) = default;
};

// All that can happen to `num_ranks` ranks that reach `last` boundaries, and are asked at any time or never.
class Model {
 public:
  Model(int num_ranks, int last)
      : num_ranks_(static_cast<std::size_t>(num_ranks)), last_(static_cast<std::uint8_t>(last)) {}

  void explore() {
    std::vector<World> open = {World{}};
    while (!open.empty()) {
      const World world = open.back();
      open.pop_back();
      if (!known_.insert(world).second) continue;
      check(world);
      for (const World& next : nexts(world)) open.push_back(next);
    }
  }

  [[nodiscard]] std::size_t num_worlds() const { return known_.size(); }
  [[nodiscard]] const std::set<int>& stops() const { return stops_; }

 private:
  [[nodiscard]] std::vector<World> nexts(const World& world) const {
    std::vector<World> all;
    for (std::size_t i = 0; i < num_ranks_; ++i) {
      const Rank& rank = world.ranks[i];
      if (!rank.is_asked) {
        World next = world;
        next.ranks[i].is_asked = true;
        all.push_back(next);
      }
      if (rank.has_stopped) continue;
      if (rank.is_looking) {
        all.push_back(exchanged(world, i));
      } else if (rank.boundary < last_) {
        World next = world;
        Rank& moved = next.ranks[i];
        ++moved.boundary;
        moved.seen = world.word;
        moved.is_looking = true;
        moved.brings_ask = rank.is_asked;
        all.push_back(next);
      }
    }
    return all;
  }

  // What StopWord::reach() does with what it has read.
  [[nodiscard]] static World exchanged(const World& world, std::size_t i) {
    World next = world;
    Rank& rank = next.ranks[i];
    const StopMove move = stop_move(rank.seen, rank.boundary, rank.brings_ask);
    if (move.word != rank.seen && world.word != rank.seen) {
      rank.seen = world.word;  // another rank has written meanwhile
      return next;
    }
    if (move.word != rank.seen) next.word = static_cast<std::uint8_t>(move.word);
    rank.is_looking = false;
    rank.seen = 0;
    rank.has_stopped = move.stops;
    return next;
  }

  // Where one stops nobody goes on, and nobody stops elsewhere.
  void check(const World& world) {
    std::optional<int> stop;
    for (const Rank& rank : world.ranks)
      if (rank.has_stopped) stop = rank.boundary;
    const bool is_over =
        std::all_of(world.ranks.begin(),
                    world.ranks.begin() + static_cast<std::ptrdiff_t>(num_ranks_),
                    [&](const Rank& rank) {
                      return rank.has_stopped || (rank.boundary == last_ && !rank.is_looking);
                    });
    if (stop) stops_.insert(*stop);
    for (std::size_t i = 0; i < num_ranks_; ++i) {
      const Rank& rank = world.ranks[i];
      const int passed = rank.is_looking ? rank.boundary - 1 : rank.boundary;
      if (stop && rank.has_stopped) {
        ASSERT_EQ(rank.boundary, *stop);
      } else if (stop) {
        ASSERT_LT(passed, *stop);
        ASSERT_FALSE(is_over);
      }
      if (!rank.brings_ask || rank.is_looking) continue;
      ASSERT_EQ(world.word & 1, 1);
      // It was in vain only when another rank had reached the last boundary by then.
      if (is_over && !stop) {
        ASSERT_EQ(world.word >> 1, last_);
      }
    }
  }

  std::size_t num_ranks_;
  std::uint8_t last_;
  std::set<World> known_;
  std::set<int> stops_;
};

TEST(StopWord, NoOrderOfReadsAndWritesLetsARankGoPastTheBoundaryOfTheOthers) {
  for (const auto& [ranks, last] : {std::pair(2, 5), std::pair(3, 3)}) {
    Model model(ranks, last);
    ASSERT_NO_FATAL_FAILURE(model.explore());
    std::set<int> all_but_the_first;
    for (int boundary = 2; boundary <= last; ++boundary) all_but_the_first.insert(boundary);
    EXPECT_EQ(model.stops(), all_but_the_first) << ranks << " ranks";
    RecordProperty("worlds of " + std::to_string(ranks) + " ranks",
                   static_cast<int>(model.num_worlds()));
  }
}

TEST(StopWord, TheRankThatIsAskedStopsAfterTheNewestBoundaryOfAny) {
  std::atomic<std::uint64_t> word{0};
  StopWord ahead(word);
  StopWord behind(word);
  EXPECT_FALSE(ahead.reach(false));
  EXPECT_FALSE(ahead.reach(false));
  EXPECT_FALSE(ahead.reach(false));

  EXPECT_FALSE(behind.reach(true)) << "1";
  EXPECT_FALSE(behind.reach(true)) << "2";
  EXPECT_FALSE(behind.reach(true)) << "3, which the other has passed";
  EXPECT_TRUE(behind.reach(true));
  EXPECT_TRUE(ahead.reach(false));
}

TEST(StopWord, NobodyStopsUnlessAsked) {
  std::atomic<std::uint64_t> word{0};
  StopWord one(word);
  StopWord other(word);
  for (int boundary = 0; boundary < 100; ++boundary) {
    EXPECT_FALSE(one.reach(false));
    if (boundary % 3 == 0) {
      EXPECT_FALSE(other.reach(false));
    }
  }
}

TEST(StopWord, ThreadsThatRunAsTheyLikeStopAtOneBoundary) {
  constexpr int kRanks = 4;
  std::mt19937 random(test::test_seed());
  for (int round = 0; round < 50; ++round) {
    std::atomic<std::uint64_t> word{0};
    const int asked = static_cast<int>(random() % kRanks);
    const std::uint32_t asked_at = random() % 50;
    std::vector<int> stops(kRanks);
    {
      std::vector<std::jthread> threads;
      for (int rank = 0; rank < kRanks; ++rank) {
        threads.emplace_back([&, rank] {
          StopWord own(word);
          int boundary = 1;
          for (; !own.reach(rank == asked && boundary >= static_cast<int>(asked_at)); ++boundary) {
          }
          stops[static_cast<std::size_t>(rank)] = boundary;
        });
      }
    }
    EXPECT_EQ(std::set<int>(stops.begin(), stops.end()).size(), 1U) << "round " << round;
  }
}

}  // namespace
}  // namespace accel::shm::stop_word_test
