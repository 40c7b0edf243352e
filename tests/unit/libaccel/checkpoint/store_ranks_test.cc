// What a save in the background learns of ranks that die meanwhile.

#include "libaccel/engine/checkpoint/ranks/store_ranks.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <latch>
#include <map>
#include <memory>
#include <mutex>
#include <stop_token>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <unistd.h>

#include <accel/async_save.h>
#include <accel/checkpoint.h>
#include <accel/error.h>
#include <accel/state.h>

#include "libaccel/engine/checkpoint/series/background_save.h"
#include "libaccel/engine/process/process_group.h"
#include "libaccel/engine/shm/memory/node_identity.h"
#include "libaccel/engine/shm/memory/peer_watch.h"
#include "runtime/checkpoint/file_system.h"
#include "tests/support/fake_nodes.h"
#include "tests/support/rank_group.h"
#include "tests/support/scratch_folder.h"

namespace accel::checkpoint::store_ranks_test {
namespace {

using namespace std::chrono_literals;
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

// Faster than in jobs; the silence is still many beats long.
constexpr Pulse kFastPulse{.period = 20ms, .longest_silence = 3s};

void be_alone_on_a_node(int rank, int num_ranks) {
  test::be_on_node(rank, num_ranks, 0, 1);
  ::setenv(shm::kTestNodeVariable, ("node-" + std::to_string(rank)).c_str(), 1);
}

TEST(StoreRanks, ARankOfAnotherNodeThatDiesIsNamedAfterSomeSilence) {
  const auto exits = test::run_ranks(
      3,
      [&] {
        const int rank = test::rank_of_this_process();
        be_alone_on_a_node(rank, 3);
        const PartialState state;
        const auto ranks = store_ranks("save", 24h, {}, kFastPulse);
        EXPECT_EQ(ranks->all_gather("first").size(), 3U);
        if (rank == 1) ::raise(SIGKILL);
        try {
          (void)ranks->all_gather("second");
          ADD_FAILURE() << "nobody was missed";
        } catch (const Error& error) {
          EXPECT_EQ(error.code(), ErrorCode::kPeerLost);
          EXPECT_THAT(error.message(), HasSubstr("rank 1 gave no sign of life for 3 s"));
        }
      },
      {.expect_success = false});
  if (test::rank_of_this_process() >= 0) return;
  EXPECT_EQ(exits[0].status, 0) << exits[0].output;
  EXPECT_EQ(exits[1].status, 128 + SIGKILL);
  EXPECT_EQ(exits[2].status, 0) << exits[2].output;
}

TEST(StoreRanks, ARankThatDiedBeforeItsFirstBeatIsNamedTheSame) {
  const auto exits = test::run_ranks(
      2,
      [&] {
        const int rank = test::rank_of_this_process();
        be_alone_on_a_node(rank, 2);
        const PartialState state;
        if (rank == 1) ::raise(SIGKILL);
        const auto ranks = store_ranks("save", 24h, {}, kFastPulse);
        try {
          (void)ranks->all_gather("first");
          ADD_FAILURE() << "nobody was missed";
        } catch (const Error& error) {
          EXPECT_EQ(error.code(), ErrorCode::kPeerLost);
          EXPECT_THAT(error.message(), HasSubstr("rank 1 gave no sign of life for 3 s"));
        }
      },
      {.expect_success = false});
  if (test::rank_of_this_process() >= 0) return;
  EXPECT_EQ(exits[0].status, 0) << exits[0].output;
  EXPECT_EQ(exits[1].status, 128 + SIGKILL);
}

// The watcher of each dead rank is dead too, but for the first, which has said all that the others wait for.
TEST(StoreRanks, ALostNodeIsFoundBehindARankOfItThatHadSpoken) {
  const auto exits = test::run_ranks(
      4,
      [&] {
        const int rank = test::rank_of_this_process();
        test::be_on_node(rank / 2, 2, rank % 2, 2);
        ::setenv(shm::kTestNodeVariable, rank < 2 ? "node-0" : "node-1", 1);
        const PartialState state;
        const auto ranks = store_ranks("save", 24h, {}, kFastPulse);
        EXPECT_EQ(ranks->all_gather("first").size(), 4U);
        const std::jthread lost([&] {
          if (rank < 2) return;
          PartialState::process_group()->store()->clone()->wait({"save/1/2"});
          ::raise(SIGKILL);
        });
        if (rank == 3) ::pause();
        try {
          (void)ranks->all_gather("second");
          ADD_FAILURE() << "nobody was missed";
        } catch (const Error& error) {
          EXPECT_EQ(error.code(), ErrorCode::kPeerLost);
          EXPECT_THAT(error.message(), HasSubstr("rank 3 gave no sign of life for 3 s"));
        }
      },
      {.expect_success = false});
  if (test::rank_of_this_process() >= 0) return;
  EXPECT_EQ(exits[0].status, 0) << exits[0].output;
  EXPECT_EQ(exits[1].status, 0) << exits[1].output;
  EXPECT_EQ(exits[2].status, 128 + SIGKILL);
  EXPECT_EQ(exits[3].status, 128 + SIGKILL);
}

class Number final : public Stateful {
 public:
  StateDict state_dict() const override { return {.values = {{"value", std::int64_t{3}}}}; }
  void load_state_dict(const StateDict&) override {}
};

// Dies with the first word that it is to say, once it may.
class DyingRank final : public RankExchange {
 public:
  DyingRank(std::unique_ptr<RankExchange> living, std::latch& may_die)
      : living_(std::move(living)), may_die_(may_die) {}
  int rank() const override { return living_->rank(); }
  int size() const override { return living_->size(); }
  int local_rank() const override { return living_->local_rank(); }
  std::vector<std::string> all_gather(const std::string&) override {
    may_die_.wait();
    ::raise(SIGKILL);
    return {};
  }

 private:
  std::unique_ptr<RankExchange> living_;
  std::latch& may_die_;
};

// As at the end of an Accelerator.
TEST(StoreRanks, TheEndOfASaveDoesNotWaitForARankThatDiedOnAnotherNode) {
  const test::ScratchFolder scratch;
  const auto exits =
      test::run_ranks(2,
                      [&] {
                        const int rank = test::rank_of_this_process();
                        be_alone_on_a_node(rank, 2);
                        const PartialState state;
                        const auto store = PartialState::process_group()->store();
                        std::latch may_die(1);
                        Number number;
                        BackgroundSaves saves;
                        const auto make_ranks = [&](const std::string& name, std::stop_token stop) {
                          auto ranks = store_ranks(name, 24h, std::move(stop), kFastPulse);
                          if (rank == 1)
                            ranks = std::make_unique<DyingRank>(std::move(ranks), may_die);
                          return ranks;
                        };
                        const AsyncSave saving = saves.begin(real_file_system(),
                                                             *current_ranks(),
                                                             make_ranks,
                                                             scratch.path() / "saved",
                                                             {.custom = {&number}},
                                                             {});
                        if (rank == 0) store->set("rank 0 has begun", std::vector<std::uint8_t>{1});
                        store->wait({"rank 0 has begun"});
                        may_die.count_down();
                      },
                      {.expect_success = false});
  if (test::rank_of_this_process() >= 0) return;
  EXPECT_EQ(exits[0].status, 0) << exits[0].output;
  EXPECT_THAT(exits[0].output, HasSubstr("rank 1 gave no sign of life"));
  EXPECT_EQ(exits[1].status, 128 + SIGKILL);
  EXPECT_TRUE(std::filesystem::is_empty(scratch.path()));
}

// The thread of the rank that lives has begun by then, and waits for one that will never be.
TEST(StoreRanks, TheStartOfASaveDoesNotWaitForARankThatDiesInIt) {
  const test::ScratchFolder scratch;
  const auto exits = test::run_ranks(
      2,
      [&] {
        const int rank = test::rank_of_this_process();
        be_alone_on_a_node(rank, 2);
        const PartialState state;
        const auto store = PartialState::process_group()->store();
        Number number;
        BackgroundSaves saves;
        const auto make_ranks = [&](const std::string& name, std::stop_token stop) {
          if (rank == 1) {
            store->wait({name + "/beat/0"});
            ::raise(SIGKILL);
          }
          return store_ranks(name, 24h, std::move(stop), {.period = 24h, .longest_silence = 24h});
        };
        EXPECT_THROW((void)saves.begin(real_file_system(),
                                       *current_ranks(),
                                       make_ranks,
                                       scratch.path() / "saved",
                                       {.custom = {&number}},
                                       {}),
                     Error);
      },
      {.expect_success = false});
  if (test::rank_of_this_process() >= 0) return;
  EXPECT_EQ(exits[0].status, 0) << exits[0].output;
  EXPECT_EQ(exits[1].status, 128 + SIGKILL);
}

class SilenceClockTest : public ::testing::Test {
 protected:
  bool look(const std::string& beat, std::chrono::milliseconds after) {
    now_ += after;
    return clock_.is_silent_for_too_long(beat, now_);
  }
  SilenceClock clock_{{.period = 100ms, .longest_silence = 1s}};
  SilenceClock::TimePoint now_{};
};

TEST_F(SilenceClockTest, ABeatThatStaysTheSameForTooLongIsSilence) {
  EXPECT_FALSE(look("7", 100ms));
  for (int i = 0; i < 10; ++i) EXPECT_FALSE(look("7", 100ms)) << i;
  EXPECT_TRUE(look("7", 100ms));
}

TEST_F(SilenceClockTest, AnyOtherBeatEndsIt) {
  for (int i = 0; i < 10; ++i) EXPECT_FALSE(look("7", 100ms)) << i;
  EXPECT_FALSE(look("8", 100ms));
  for (int i = 0; i < 10; ++i) EXPECT_FALSE(look("8", 100ms)) << i;
  EXPECT_TRUE(look("8", 100ms));
}

TEST_F(SilenceClockTest, WhoWasStoppedItselfHasHeardNothingMeanwhile) {
  EXPECT_FALSE(look("7", 100ms));
  EXPECT_FALSE(look("7", 24h)) << "two periods count";
  for (int i = 0; i < 8; ++i) EXPECT_FALSE(look("7", 100ms)) << i;
  EXPECT_TRUE(look("7", 100ms));
}

// Counts what is asked of one key alone, and ends the wait after some looks at all of them.
class CountingStore final : public c10d::HashStore {
 public:
  explicit CountingStore(std::stop_source stop) : stop_(std::move(stop)) {}

  bool check(const std::vector<std::string>& keys) override {
    const std::scoped_lock lock(mutex_);  // beats come from another thread
    if (keys.size() == 1) ++asked_of[keys.front()];
    if (keys.size() > 1 && ++num_looks_ == 12) stop_.request_stop();
    return HashStore::check(keys);
  }

  std::map<std::string, int> asked_of;

 private:
  std::mutex mutex_;
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

// Counts the values that are read, of all ranks together.
class ReadCountingStore final : public c10d::HashStore {
 public:
  std::vector<std::uint8_t> get(const std::string& key) override {
    const std::vector<std::uint8_t> value = HashStore::get(key);
    count(key, value.size());
    return value;
  }
  std::vector<std::vector<std::uint8_t>> multiGet(const std::vector<std::string>& keys) override {
    std::vector<std::vector<std::uint8_t>> values;
    for (const std::string& key : keys) values.push_back(get(key));
    return values;
  }

  std::atomic<int> num_reports = 0;
  std::atomic<std::size_t> num_bytes = 0;

 private:
  void count(const std::string& key, std::size_t bytes) {
    if (!key.starts_with("save/0/")) return;  // of the first round alone
    ++num_reports;
    num_bytes += bytes;
  }
};

TEST(StoreRanks, ADecisionReadsEachReportOnceHoweverManyRanksThereAre) {
  constexpr int kRanks = 64;
  const std::string report(1000, 'r');
  const auto store = c10::make_intrusive<ReadCountingStore>();
  std::atomic<int> num_judges = 0;
  std::vector<std::string> answers(kRanks);
  {
    std::vector<std::jthread> threads;
    for (int rank = 0; rank < kRanks; ++rank) {
      threads.emplace_back([&, rank] {
        const auto ranks = store_ranks({.rank = rank, .size = kRanks, .local_rank = rank},
                                       store,
                                       "save",
                                       std::chrono::hours(24),
                                       {});
        answers[static_cast<std::size_t>(rank)] =
            ranks->decide(report, [&](const std::vector<std::string>& reports) {
              ++num_judges;
              return std::to_string(reports.size()) + " reports";
            });
      });
    }
  }

  EXPECT_THAT(answers, ::testing::Each("64 reports"));
  EXPECT_EQ(num_judges, 1);
  EXPECT_EQ(store->num_reports, kRanks + kRanks - 1) << "by rank 0, and an answer for each other";
  EXPECT_LT(store->num_bytes, 2 * kRanks * report.size());
}

TEST(StoreRanks, ARankZeroThatDiesBeforeItsAnswerIsNamed) {
  const pid_t child = ::fork();
  if (child == 0) ::_exit(0);
  ASSERT_GT(child, 0);
  const auto store = c10::make_intrusive<c10d::HashStore>();
  const auto ranks = store_ranks(
      {.rank = 1, .size = 2, .local_rank = 1}, store, "save", std::chrono::hours(24), {});
  const auto own = store->get("save/process/1");
  const std::string node(own.begin(), std::find(own.begin(), own.end(), ' '));
  const std::string process =
      node + " " + std::to_string(child) + " " + std::to_string(shm::start_time_of(child));
  store->set("save/process/0", std::vector<std::uint8_t>(process.begin(), process.end()));
  store->set("save/0/0", {1});  // it spoke
  ASSERT_EQ(::waitpid(child, nullptr, 0), child);

  try {
    (void)ranks->decide("mine", [](const std::vector<std::string>&) { return ""; });
    ADD_FAILURE() << "nobody was missed";
  } catch (const Error& error) {
    EXPECT_THAT(error.message(), HasSubstr("rank 0 died"));
  }
}

}  // namespace
}  // namespace accel::checkpoint::store_ranks_test
