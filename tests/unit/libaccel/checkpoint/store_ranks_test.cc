// What a save in the background learns of ranks that die meanwhile.

#include "libaccel/checkpoint/store_ranks.h"

#include <chrono>
#include <csignal>
#include <cstdint>
#include <map>
#include <stop_token>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include <accel/error.h>
#include <accel/state.h>

#include "tests/support/rank_group.h"

namespace accel::checkpoint {
namespace {

using ::testing::HasSubstr;

TEST(StoreRanks, ARankThatDiesIsNamedLongBeforePatienceEnds) {
  constexpr std::chrono::hours kPatience{24};  // the test's own limit is far below
  const auto exits = test::run_ranks(
      3,
      [&] {
        const PartialState state;
        const auto ranks = store_ranks("save", kPatience, {});
        EXPECT_EQ(ranks->all_gather("first " + std::to_string(ranks->rank())).at(1), "first 1");
        if (ranks->rank() == 1) ::raise(SIGKILL);
        try {
          (void)ranks->all_gather("second");
          ADD_FAILURE() << "nobody was missed";
        } catch (const Error& error) {
          EXPECT_EQ(error.code(), ErrorCode::kPeerLost);
          EXPECT_THAT(error.message(), HasSubstr("rank 1 died"));
        }
      },
      {.expect_success = false});
  if (test::rank_of_this_process() >= 0) return;
  EXPECT_EQ(exits[0].status, 0) << exits[0].output;
  EXPECT_EQ(exits[1].status, 128 + SIGKILL);
  EXPECT_EQ(exits[2].status, 0) << exits[2].output;
}

TEST(StoreRanks, WhatARankSaidBeforeItDiedCounts) {
  const auto exits =
      test::run_ranks(2,
                      [&] {
                        const PartialState state;
                        const auto ranks = store_ranks("save", std::chrono::hours(24), {});
                        const auto said = ranks->all_gather(std::to_string(ranks->rank()));
                        EXPECT_EQ(said.at(1), "1");
                        if (ranks->rank() == 1) ::raise(SIGKILL);
                      },
                      {.expect_success = false});
  if (test::rank_of_this_process() >= 0) return;
  EXPECT_EQ(exits[0].status, 0) << exits[0].output;
}

// Counts what is asked of one key alone, and ends the wait after some looks at all of them.
class CountingStore final : public c10d::HashStore {
 public:
  explicit CountingStore(std::stop_source stop) : stop_(std::move(stop)) {}

  bool check(const std::vector<std::string>& keys) override {
    if (keys.size() == 1) ++asked_of[keys.front()];
    if (keys.size() > 1 && ++num_looks_ == 300) stop_.request_stop();
    return HashStore::check(keys);
  }

  std::map<std::string, int> asked_of;

 private:
  std::stop_source stop_;
  int num_looks_ = 0;
};

TEST(StoreRanks, ALongWaitDoesNotAskTheStoreAgainAndAgainForEachRank) {
  std::stop_source stop;
  const auto store = c10::make_intrusive<CountingStore>(stop);
  const std::string other_node = "another-node 1 1";
  store->set("save/process/1", std::vector<std::uint8_t>(other_node.begin(), other_node.end()));
  const auto ranks = store_ranks({.rank = 0, .size = 3, .local_rank = 0},
                                 store,
                                 "save",
                                 std::chrono::hours(24),
                                 stop.get_token());
  const auto this_process = store->get("save/process/0");
  store->set("save/process/2", this_process);  // lives, and says nothing

  EXPECT_THROW((void)ranks->all_gather("here"), Error);

  for (const char* rank : {"1", "2"})
    EXPECT_LE(store->asked_of["save/process/" + std::string(rank)], 1) << rank;
  EXPECT_EQ(store->asked_of["save/0/1"], 0);
  EXPECT_EQ(store->asked_of["save/0/2"], 0);
  for (const char* rank : {"1", "2"}) store->set("save/left/" + std::string(rank), {1});
}

}  // namespace
}  // namespace accel::checkpoint
