// Bounded exhaustive search: every order of everything that can happen to three nodes and their
// coordinator, within bounds, under hard fencing.
//
// Bounds: one restart (two generations of workers), 2 messages dropped, 1 repeated, 2 of {agent dies,
// node dies, coordinator dies, link cut, rank fails}, messages of a link overtaken within 3. The clock
// moves when nothing is under way: a message that takes longer is one behind a cut link. States are told
// apart by the fingerprint of the cluster, so each is looked at once.
//
// The whole space within these bounds is far larger than a test may take. All orders without a fault are
// searched first, all of them. Then faults are put into states already seen, one, two, up to five of
// them in turn, drawn at random (ACCEL_TEST_SEED); after each the orders are searched again, depth first,
// for `kSlice` states at most, up to the limit of states in all. At every state the checks of virtual_cluster.h hold; no state is dead (something can
// always happen short of the job's end); and from every `kSample`-th state, with all faults mended, the
// job ends.

#include <algorithm>
#include <iterator>
#include <memory>
#include <random>
#include <unordered_set>

#include <gtest/gtest.h>

#include "tests/support/test_budget.h"
#include "tests/support/virtual_cluster.h"

namespace accel::agent::coordinator_search_test {
namespace {

using test::ClusterOptions;
using test::Move;
using test::MoveKind;
using test::SeededBug;
using test::VirtualCluster;
using test::Workers;

constexpr int kWindow = 3;
constexpr int kSample = 500;
constexpr std::size_t kSlice = 400;  // states after one fault, before the next is drawn
constexpr Milliseconds kHorizon{60'000};

struct Faults {
  int drops = 0;
  int repeats = 0;
  int crashes = 0;

  [[nodiscard]] int total() const { return drops + repeats + crashes; }
  [[nodiscard]] bool is_within() const { return drops <= 2 && repeats <= 1 && crashes <= 2; }
};
constexpr int kMostFaults = 5;

// A state whose followers are still to be found.
struct Entry {
  std::shared_ptr<const VirtualCluster> cluster;
  Faults faults;
};

// A state, and a fault that may happen in it.
struct FaultEntry {
  std::shared_ptr<const VirtualCluster> cluster;
  Faults faults;  // with this one
  Move fault;
};

Faults with(Faults faults, MoveKind kind) {
  switch (kind) {
    case MoveKind::kDropUp:
    case MoveKind::kDropDown:
      ++faults.drops;
      break;
    case MoveKind::kRepeatUp:
    case MoveKind::kRepeatDown:
      ++faults.repeats;
      break;
    default:
      ++faults.crashes;
  }
  return faults;
}

std::vector<Move> faults_of(VirtualCluster& cluster) {
  std::vector<Move> moves;
  for (std::size_t i = 0; i < cluster.num_nodes(); ++i) {
    const int index = static_cast<int>(i);
    const auto& node = cluster.node(index);
    if (!node.up.empty() && !node.is_cut) {
      moves.push_back({MoveKind::kDropUp, index, 0});
      moves.push_back({MoveKind::kRepeatUp, index, 0});
    }
    if (!node.down.empty() && !node.is_cut) {
      moves.push_back({MoveKind::kDropDown, index, 0});
      moves.push_back({MoveKind::kRepeatDown, index, 0});
    }
    if (node.is_agent_up && node.connection != 0) {
      moves.push_back({MoveKind::kCrashAgent, index});
      moves.push_back({MoveKind::kCrashNode, index});
    }
    if (!node.is_cut) moves.push_back({MoveKind::kCut, index});
    if (node.workers.phase == Workers::Phase::kRunning && node.is_agent_up) {
      moves.push_back({MoveKind::kFailRank, index});
    }
  }
  if (cluster.is_coordinator_up()) moves.push_back({MoveKind::kCrashCoordinator});
  return moves;
}

bool is_mending(const Move& move) {
  return move.kind >= MoveKind::kStartAgent;
}

// What agents do commutes between agents, and with what the coordinator takes in meanwhile, but for one
// thing: a message sent later may overtake one that waits. So one agent's turn at a time is enough, in
// every order of its own link; that messages wait and then overtake is what cut links are for.
std::vector<Move> moves_of(const VirtualCluster& cluster) {
  const std::vector<Move> all = cluster.moves(kWindow);
  const auto is_of_agent = [](const Move& move) {
    return move.kind == MoveKind::kDeliverDown || move.kind == MoveKind::kDeliverLocal;
  };
  const auto first = std::find_if(all.begin(), all.end(), is_of_agent);
  if (first == all.end()) {
    // What is mended is mended between two moves of the clock.
    std::vector<Move> now = all;
    if (!cluster.is_quiet()) std::erase_if(now, is_mending);
    return now;
  }
  std::vector<Move> of_one;
  std::copy_if(all.begin(), all.end(), std::back_inserter(of_one), [&](const Move& move) {
    return is_of_agent(move) && move.node == first->node;
  });
  return of_one;
}

class Search {
 public:
  Search(SeededBug bug, std::size_t limit, std::uint64_t seed) : limit_(limit), random_(seed) {
    ClusterOptions options;
    options.num_nodes = 3;
    options.job = test::small_job(2, 3);
    options.job.fence.fencing = Fencing::kHard;
    options.job.fence.lease = Milliseconds(12'000);
    options.job.restart.budget.max_out_of_memory = 0;
    options.work = Milliseconds(15'000);
    options.bug = bug;
    auto first = std::make_shared<VirtualCluster>(options);
    first->keeps_reports = false;
    while (first->phase() != JobPhase::kPreparing) first->apply(first->moves(1).front());
    begin_ = first->now();
    work_.push_back({std::move(first), {}});
  }

  // The first breach, or empty.
  std::string run() {
    follow();
    num_without_faults_ = seen_.size();
    for (int level = 1; fault_.empty() && seen_.size() < limit_; level = level % kMostFaults + 1) {
      auto& candidates = candidates_[level];
      if (candidates.empty()) {
        const bool is_over = std::all_of(std::begin(candidates_),
                                         std::end(candidates_),
                                         [](const auto& left) { return left.empty(); });
        if (is_over) break;
        continue;
      }
      std::swap(candidates[random_() % candidates.size()], candidates.back());
      const FaultEntry entry = std::move(candidates.back());
      candidates.pop_back();
      auto next = std::make_shared<VirtualCluster>(*entry.cluster);
      next->apply(entry.fault);
      ++moves_;
      ++tried_[level];
      enter(std::move(next), entry.faults);
      slice_end_ = seen_.size() + kSlice;
      follow();
      work_.clear();
    }
    return fault_;
  }

  [[nodiscard]] std::size_t num_states() const { return seen_.size(); }
  [[nodiscard]] std::size_t num_moves() const { return moves_; }
  [[nodiscard]] std::size_t num_ended() const { return ended_; }
  [[nodiscard]] std::size_t num_runs() const { return runs_; }
  [[nodiscard]] std::size_t num_without_faults() const { return num_without_faults_; }
  [[nodiscard]] std::size_t tried(int level) const { return tried_[level]; }

 private:
  // Everything that can follow without a further fault.
  void follow() {
    while (!work_.empty() && fault_.empty() && seen_.size() < std::min(limit_, slice_end_)) {
      const Entry entry = std::move(work_.back());
      work_.pop_back();
      expand(entry.cluster, entry.faults);
    }
  }

  void enter(std::shared_ptr<VirtualCluster> cluster, Faults faults) {
    if (!cluster->violation().empty()) {
      fault_ = cluster->violation();
      return;
    }
    // What is left of the budgets belongs to the state: with more of it more can follow.
    const std::uint64_t key =
        cluster->fingerprint() * 64 +
        static_cast<std::uint64_t>(faults.drops * 16 + faults.repeats * 8 + faults.crashes);
    if (!seen_.insert(key).second) return;
    work_.push_back({std::move(cluster), faults});
  }

  void expand(const std::shared_ptr<const VirtualCluster>& cluster, Faults faults) {
    if (cluster->has_ended()) {
      ++ended_;
      return;
    }
    if (seen_.size() % kSample == 0) check_that_it_ends(*cluster);
    if (cluster->now() - begin_ > kHorizon) return;
    std::vector<Move> moves = moves_of(*cluster);
    if (cluster->is_quiet() && cluster->has_moment()) moves.push_back({MoveKind::kAdvance});
    if (moves.empty()) {
      fault_ = "a dead state: nothing can happen and the job has not ended";
      return;
    }
    std::shuffle(moves.begin(), moves.end(), random_);
    // Depth first from the back: what mends comes last, so that faults last.
    std::stable_partition(moves.begin(), moves.end(), is_mending);
    for (const Move& move : moves) {
      auto next = std::make_shared<VirtualCluster>(*cluster);
      next->apply(move);
      ++moves_;
      enter(std::move(next), faults);
      if (!fault_.empty()) return;
    }
    // Keeping every state for its faults would take gigabytes.
    if (faults.total() > 0 && random_() % 8 != 0) return;
    for (const Move& fault : faults_of(const_cast<VirtualCluster&>(*cluster))) {
      const Faults more = with(faults, fault.kind);
      if (more.is_within()) candidates_[more.total()].push_back({cluster, more, fault});
    }
  }

  void check_that_it_ends(const VirtualCluster& cluster) {
    VirtualCluster copy = cluster;
    copy.mend();
    copy.run_fairly(5'000);
    ++runs_;
    if (!copy.violation().empty()) fault_ = copy.violation();
    if (fault_.empty() && !copy.has_ended()) fault_ = "mended, the job still never ends";
  }

  std::size_t limit_;
  std::size_t slice_end_ = limit_;  // without faults: no end of its own
  TimePoint begin_;
  std::vector<Entry> work_;
  std::vector<FaultEntry> candidates_[kMostFaults + 1];  // by number of faults
  std::size_t tried_[kMostFaults + 1] = {};
  std::mt19937_64 random_;
  std::unordered_set<std::uint64_t> seen_;
  std::size_t moves_ = 0;
  std::size_t ended_ = 0;
  std::size_t runs_ = 0;
  std::size_t num_without_faults_ = 0;
  std::string fault_;
};

TEST(CoordinatorSearch, NothingBreaksWithinTheBounds) {
  constexpr std::size_t kLeast = 100'000;
  const std::size_t limit = accel::test::is_long_run() ? 1'000'000 : 150'000;
  Search search(SeededBug::kNone, limit, accel::test::test_seed());

  const std::string fault = search.run();

  std::printf("%zu states (%zu without faults: all), %zu moves, %zu ends, %zu runs to the end\n",
              search.num_states(),
              search.num_without_faults(),
              search.num_moves(),
              search.num_ended(),
              search.num_runs());
  for (int level = 1; level <= kMostFaults; ++level) {
    std::printf("%zu times a fault number %d\n", search.tried(level), level);
  }
  EXPECT_EQ(fault, "");
  EXPECT_GE(search.num_states(), kLeast);
  EXPECT_GT(search.num_ended(), 0u);
}

class SearchBites : public ::testing::TestWithParam<SeededBug> {};

TEST_P(SearchBites, FindsTheSeededBug) {
  Search search(GetParam(), 150'000, 1);

  const std::string fault = search.run();

  EXPECT_NE(fault, "");
  std::printf("found after %zu states: %s\n", search.num_states(), fault.c_str());
}

INSTANTIATE_TEST_SUITE_P(EveryBug,
                         SearchBites,
                         ::testing::Values(SeededBug::kAnswersBeforeWriting,
                                           SeededBug::kForgetsLease,
                                           SeededBug::kForgetsBudget));

}  // namespace
}  // namespace accel::agent::coordinator_search_test
