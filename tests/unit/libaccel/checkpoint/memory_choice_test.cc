#include "libaccel/engine/checkpoint/memory/memory_choice.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace accel::checkpoint::memory_choice_test {
namespace {

// Serial and step are told apart by a factor, so that a mix-up shows.
MemoryStamp part(std::int64_t serial, int rank, int world_size = 2, std::int64_t generation = 0) {
  return {.serial = serial,
          .generation = generation,
          .step = 10 * serial,
          .world_size = world_size,
          .rank = rank};
}

struct Case {
  const char* name;
  std::vector<std::vector<MemoryStamp>> by_rank;
  std::int64_t serial;  // that is chosen; 0: none
  const char* why_not;
};

class MemoryChoiceTable : public ::testing::TestWithParam<Case> {};

TEST_P(MemoryChoiceTable, TakesTheNewestThatAllRanksHave) {
  const MemoryChoice choice = choose_memory_checkpoint(GetParam().by_rank);

  EXPECT_EQ(choice.stamp ? choice.stamp->serial : 0, GetParam().serial);
  EXPECT_EQ(choice.why_not, GetParam().why_not);
}

INSTANTIATE_TEST_SUITE_P(
    Cases,
    MemoryChoiceTable,
    ::testing::Values(
        Case{"NobodyHasOne", {{}, {}}, 0, "no rank has one"},
        Case{"BothHaveBoth", {{part(4, 0), part(5, 0)}, {part(5, 1), part(4, 1)}}, 5, ""},
        Case{"OneWasKilledInTheCopy", {{part(4, 0), part(5, 0)}, {part(4, 1)}}, 4, ""},
        Case{"OneIsAhead", {{part(4, 0), part(3, 0)}, {part(4, 1), part(5, 1)}}, 4, ""},
        Case{"AllWereKilledInTheFirstCopy",
             {{}, {part(1, 1)}},
             0,
             "rank 0 has no part of that of step 10 of generation 0"},
        Case{"ANodeWasLost",
             {{part(4, 0), part(5, 0)}, {}},
             0,
             "rank 1 has no part of that of step 50 of generation 0"},
        Case{"FewerRanks",
             {{part(5, 0, 3)}, {part(5, 1, 3)}},
             0,
             "that of step 50 of generation 0 was saved by 3 ranks, now there are 2"},
        Case{"MoreRanks",
             {{part(5, 0, 1)}, {}},
             0,
             "that of step 50 of generation 0 was saved by 1 ranks, now there are 2"},
        Case{"AnOlderOneHasTheRightNumber",
             {{part(5, 0, 3), part(4, 0)}, {part(5, 1, 3), part(4, 1)}},
             4,
             ""},
        Case{"OfTwoGenerations",
             {{part(5, 0, 2, 1)}, {part(5, 1, 2, 0)}},
             0,
             "rank 1 has no part of that of step 50 of generation 1"},
        Case{"PartOfAnotherRank",
             {{part(5, 0)}, {part(5, 0)}},
             0,
             "rank 1 has no part of that of step 50 of generation 0"},
        Case{"OneRank", {{part(1, 0, 1), part(2, 0, 1)}}, 2, ""}),
    [](const auto& info) { return info.param.name; });

// Ranks that are killed at any moments of a run of saves: some have completed the save under way, the others have not
// begun it or are in the copy; nobody is further. The newest that all have is then the last that was over.
TEST(MemoryChoice, ThereIsAlwaysOneFromTheFirstSaveOn) {
  for (std::int64_t over = 1; over < 6; ++over) {
    for (int state = 0; state < 27; ++state) {
      std::vector<std::vector<MemoryStamp>> by_rank;
      int num_complete = 0;
      for (int rank = 0, rest = state; rank < 3; ++rank, rest /= 3) {
        std::vector<MemoryStamp> stamps = {part(over, rank, 3)};
        if (rest % 3 == 0 && over > 1) stamps.push_back(part(over - 1, rank, 3));  // not begun
        if (rest % 3 == 2) stamps.push_back(part(over + 1, rank, 3));
        num_complete += rest % 3 == 2 ? 1 : 0;
        by_rank.push_back(std::move(stamps));
      }
      const MemoryChoice choice = choose_memory_checkpoint(by_rank);
      ASSERT_TRUE(choice.stamp);
      EXPECT_EQ(choice.stamp->serial, num_complete == 3 ? over + 1 : over);
    }
  }
}

}  // namespace
}  // namespace accel::checkpoint::memory_choice_test
