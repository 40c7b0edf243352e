// What ranks say of those that give no sign of life. Ranks without a StoreBeat of their own say what the test writes.

#include "libaccel/engine/checkpoint/ranks/store_beat.h"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/distributed/c10d/HashStore.hpp>

namespace accel::checkpoint::store_beat_test {
namespace {

using namespace std::chrono_literals;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::Not;

constexpr Pulse kFastPulse{.period = 5ms, .longest_silence = 50ms};
constexpr Pulse kNeverAgain{.period = 24h, .longest_silence = 24h};

class StoreBeatTest : public ::testing::Test {
 protected:
  void say(int rank, const std::string& beat) {
    store_->set("save/beat/" + std::to_string(rank),
                std::vector<std::uint8_t>(beat.begin(), beat.end()));
  }
  // Waits for somebody to find as many ranks silent.
  static std::vector<int> silent_ranks(StoreBeat& reader, std::size_t num_ranks) {
    std::vector<int> ranks;
    while (ranks.size() < num_ranks) ranks = reader.silent_ranks();
    return ranks;
  }
  c10::intrusive_ptr<c10d::HashStore> store_ = c10::make_intrusive<c10d::HashStore>();
};

TEST_F(StoreBeatTest, TellsOfRanksBehindASilentOneAndBehindOneThatLeft) {
  for (const int rank : {1, 2, 4}) say(rank, "5");
  say(3, "left");
  StoreBeat watcher(store_, "save", 0, 5, kFastPulse);
  EXPECT_THAT(silent_ranks(watcher, 3), ElementsAre(1, 2, 4));
}

TEST_F(StoreBeatTest, TellsOfARankThatNeverBeganUntilItDoes) {
  say(2, "5");
  StoreBeat watcher(store_, "save", 0, 3, kFastPulse);
  EXPECT_THAT(silent_ranks(watcher, 2), ElementsAre(1, 2));
  say(1, "left");
  EXPECT_THAT(watcher.silent_ranks(), ElementsAre(2));
}

// The reader beats once: it may be found silent too.
TEST_F(StoreBeatTest, ARankThatBeatsAgainIsSilentNoMoreUntilItIsOnceMore) {
  say(1, "5");
  StoreBeat reader(store_, "save", 2, 3, kNeverAgain);
  const auto wait_for_silence_of_1 = [&] {
    const StoreBeat watcher(store_, "save", 0, 3, kFastPulse);
    for (std::vector<int> ranks; std::ranges::find(ranks, 1) == ranks.end();)
      ranks = reader.silent_ranks();
  };
  wait_for_silence_of_1();
  say(1, "6");
  EXPECT_THAT(reader.silent_ranks(), Not(Contains(1)));
  wait_for_silence_of_1();
  say(1, "left");
  EXPECT_THAT(reader.silent_ranks(), Not(Contains(1)));
}

TEST_F(StoreBeatTest, AWatcherThatDiesWhileItTellsKeepsNobodyFromHearingOthers) {
  say(1, "5");
  store_->add("save/silences", 1);  // what it would write next is never written
  StoreBeat watcher(store_, "save", 0, 2, kFastPulse);
  EXPECT_THAT(silent_ranks(watcher, 1), ElementsAre(1));
}

}  // namespace
}  // namespace accel::checkpoint::store_beat_test
