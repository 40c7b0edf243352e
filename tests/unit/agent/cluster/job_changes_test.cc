// What those who follow jobs are told, and that they end with the view of the coordinator whatever the network does to it.

#include "agent/cluster/job_changes.h"

#include <deque>
#include <map>
#include <memory>
#include <random>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "agent/cluster/job_view.h"
#include "agent/jobs/job_page.h"
#include "agent/jobs/job_state.h"
#include "tests/support/test_budget.h"
#include "tests/support/virtual_cluster.h"

namespace accel::agent::job_changes_test {
namespace {

using test::Move;
using test::MoveKind;
using test::VirtualCluster;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::UnorderedElementsAre;

Job& add_job(State& state, const std::string& uuid, int num_nodes) {
  JobDescription description = test::small_job(num_nodes, num_nodes);
  description.job_uuid = uuid;
  Job& job = state.jobs[uuid];
  job.description = std::make_shared<const JobDescription>(std::move(description));
  job.phase = JobPhase::kRunning;
  job.generation = 1;
  for (int i = 0; i < num_nodes; ++i) {
    Member member;
    member.node_id = "n" + std::to_string(i);
    member.node_index = i;
    member.first_rank = 2 * i;
    member.num_ranks = 2;
    job.members.push_back(member);
  }
  return job;
}

// What `accel status` shows, but for what followers are never told.
std::string seen(const State& state, const std::string& uuid) {
  v1::Job view = view_of(state, state.jobs.at(uuid));
  view.clear_argv();
  return view.SerializeAsString();
}

std::string known(const KnownViews& views, const std::string& uuid) {
  const v1::Job* const job = views.find(uuid);
  return job == nullptr ? "" : job->SerializeAsString();
}

class JobChanges : public ::testing::Test {
 protected:
  // As a question and its answer that arrive.
  v1::JobChanges ask(const ViewLog& log) {
    v1::JobChanges answer = log.answer(views_.request());
    EXPECT_TRUE(views_.take(answer));
    return answer;
  }

  State state_;
  ViewLog log_{7};
  KnownViews views_;
};

TEST_F(JobChanges, TheFirstAnswerHasTheWholeJobAndTheNextOneNothing) {
  add_job(state_, "j", 3);
  log_.look(state_);
  views_.want({"j"}, false);

  const v1::JobChanges first = ask(log_);

  EXPECT_EQ(first.jobs_size(), 1);
  EXPECT_EQ(known(views_, "j"), seen(state_, "j"));
  log_.look(state_);
  EXPECT_FALSE(has_news(ask(log_)));
}

TEST_F(JobChanges, ANodeThatIsLostIsOneNodeOfTheAnswer) {
  Job& job = add_job(state_, "j", 1'000);
  log_.look(state_);
  views_.want({"j"}, false);
  (void)ask(log_);

  job.members[500].is_gone = true;
  log_.look(state_);
  const v1::JobChanges answer = ask(log_);

  ASSERT_EQ(answer.jobs_size(), 1);
  EXPECT_THAT(answer.jobs(0).places(), ElementsAre(500));
  EXPECT_EQ(known(views_, "j"), seen(state_, "j"));
}

TEST_F(JobChanges, ARestartWithTheSameNodesSendsNone) {
  Job& job = add_job(state_, "j", 1'000);
  log_.look(state_);
  views_.want({"j"}, false);
  (void)ask(log_);

  job.phase = JobPhase::kGathering;
  log_.look(state_);
  const v1::JobChanges gathering = ask(log_);
  EXPECT_THAT(gathering.jobs(0).places(), IsEmpty());
  EXPECT_EQ(views_.find("j")->nodes_size(), 0);
  job.phase = JobPhase::kRunning;
  ++job.generation;
  log_.look(state_);
  const v1::JobChanges running = ask(log_);

  EXPECT_THAT(running.jobs(0).places(), IsEmpty());
  EXPECT_LT(running.ByteSizeLong(), 200u);
  EXPECT_EQ(known(views_, "j"), seen(state_, "j"));
}

TEST_F(JobChanges, AListThatShrinksAndGrowsHasItsNewNodes) {
  Job& job = add_job(state_, "j", 4);
  log_.look(state_);
  views_.want({"j"}, false);
  (void)ask(log_);

  const std::vector<Member> members = job.members;
  job.members.resize(2);
  log_.look(state_);
  job.members = members;
  job.members[3].node_id = "other";
  log_.look(state_);
  const v1::JobChanges answer = ask(log_);

  EXPECT_THAT(answer.jobs(0).places(), ElementsAre(2, 3));
  EXPECT_EQ(known(views_, "j"), seen(state_, "j"));
}

TEST_F(JobChanges, AJobThatIsFollowedLaterComesWholeBesideTheChangesOfOthers) {
  Job& one = add_job(state_, "one", 3);
  add_job(state_, "two", 3);
  log_.look(state_);
  views_.want({"one"}, false);
  (void)ask(log_);

  one.members[0].is_gone = true;
  log_.look(state_);
  views_.want({"one", "two"}, false);
  const v1::JobChanges answer = ask(log_);

  EXPECT_FALSE(answer.is_whole());
  EXPECT_EQ(known(views_, "one"), seen(state_, "one"));
  EXPECT_EQ(known(views_, "two"), seen(state_, "two"));
}

TEST_F(JobChanges, AnotherLifeOfTheCoordinatorAnswersWithEverything) {
  add_job(state_, "j", 3);
  log_.look(state_);
  views_.want({"j"}, false);
  (void)ask(log_);

  ViewLog next(8);
  state_.jobs["j"].members[1].is_gone = true;
  next.look(state_);
  const v1::JobChanges answer = ask(next);

  EXPECT_TRUE(answer.is_whole());
  EXPECT_EQ(known(views_, "j"), seen(state_, "j"));
}

TEST_F(JobChanges, AJobThatIsNotThereIsSaidToBeGone) {
  log_.look(state_);
  views_.want({"nix"}, false);

  const auto news = views_.take(log_.answer(views_.request()));

  ASSERT_TRUE(news);
  EXPECT_THAT(news->gone, ElementsAre("nix"));
}

TEST_F(JobChanges, WhoFollowsAllHearsOfJobsThatComeAndGo) {
  add_job(state_, "one", 2);
  log_.look(state_);
  views_.want({}, true);
  (void)ask(log_);
  EXPECT_THAT(views_.uuids(), ElementsAre("one"));

  state_.jobs.erase("one");
  add_job(state_, "two", 2);
  log_.look(state_);
  (void)ask(log_);

  EXPECT_THAT(views_.uuids(), ElementsAre("two"));
  EXPECT_EQ(known(views_, "two"), seen(state_, "two"));
}

TEST_F(JobChanges, WhoMissedMoreJobsThatWentThanAreRememberedBeginsAnew) {
  add_job(state_, "first", 1);
  log_.look(state_);
  views_.want({}, true);
  (void)ask(log_);

  state_.jobs.clear();
  for (std::size_t i = 0; i <= ViewLog::kMostGone; ++i)
    add_job(state_, "job-" + std::to_string(i), 1);
  log_.look(state_);
  state_.jobs.clear();
  add_job(state_, "last", 1);
  log_.look(state_);
  const v1::JobChanges answer = ask(log_);

  EXPECT_TRUE(answer.is_whole());
  EXPECT_THAT(views_.uuids(), ElementsAre("last"));
}

TEST_F(JobChanges, AllJobsComeByPagesAlsoWhileTheyChange) {
  constexpr int kJobs = 60;
  for (int i = 0; i < kJobs; ++i) add_job(state_, "job-" + std::to_string(100 + i), 2'000);
  log_.look(state_);
  views_.want({}, true);

  int num_pages = 0;
  bool has_more = true;
  while (has_more) {
    const v1::JobChanges answer = ask(log_);
    EXPECT_LE(answer.ByteSizeLong(), kPageBytes + 1'024);
    has_more = answer.more();
    // One that came already and one that comes yet.
    state_.jobs["job-100"].members[static_cast<std::size_t>(num_pages)].is_gone = true;
    state_.jobs["job-129"].members[static_cast<std::size_t>(num_pages)].is_gone = true;
    ++num_pages;
    ASSERT_LT(num_pages, 100);
    if (num_pages < 5) log_.look(state_);
  }
  EXPECT_GT(num_pages, 2);
  log_.look(state_);
  while (ask(log_).more()) {
  }

  EXPECT_EQ(views_.uuids().size(), static_cast<std::size_t>(kJobs));
  for (const std::string& uuid : views_.uuids())
    EXPECT_EQ(known(views_, uuid), seen(state_, uuid)) << uuid;
}

TEST_F(JobChanges, AnAnswerToAnotherQuestionIsNotTaken) {
  Job& job = add_job(state_, "j", 3);
  log_.look(state_);
  views_.want({"j"}, false);
  const v1::JobChanges first = log_.answer(views_.request());
  ASSERT_TRUE(views_.take(first));
  job.members[0].is_gone = true;
  log_.look(state_);
  (void)ask(log_);

  EXPECT_FALSE(views_.take(first));

  EXPECT_EQ(known(views_, "j"), seen(state_, "j"));
}

TEST_F(JobChanges, AnAnswerOfBeforeAllWereFollowedIsNotTaken) {
  add_job(state_, "one", 1);
  add_job(state_, "two", 1);
  log_.look(state_);
  views_.want({"one"}, false);
  const v1::JobChanges early = log_.answer(views_.request());
  views_.want({}, true);

  EXPECT_FALSE(views_.take(early));
  (void)ask(log_);

  EXPECT_THAT(views_.uuids(), UnorderedElementsAre("one", "two"));
}

TEST_F(JobChanges, PlacesOutsideTheListAreLeftOut) {
  v1::JobChanges answer;
  v1::JobChange& change = *answer.add_jobs();
  change.set_is_whole(true);
  change.mutable_job()->set_job_uuid("j");
  change.mutable_job()->add_nodes()->set_node_id("n");
  change.add_places(4'000'000'000);
  change.set_num_nodes(4'000'000'000);
  change.set_shows_nodes(true);
  views_.want({"j"}, false);
  answer.set_question(views_.request().question());

  ASSERT_TRUE(views_.take(answer));

  EXPECT_EQ(views_.find("j")->nodes_size(), 1);
}

TEST_F(JobChanges, AnAnswerToTheQuestionForFewerJobsIsNotTaken) {
  add_job(state_, "one", 1);
  Job& two = add_job(state_, "two", 1);
  log_.look(state_);
  views_.want({"one"}, false);
  (void)ask(log_);
  const v1::ChangesReq early = views_.request();
  views_.want({"one", "two"}, false);
  (void)ask(log_);  // nothing has changed: the number is that of the question before

  two.members[0].is_gone = true;
  log_.look(state_);
  EXPECT_FALSE(views_.take(log_.answer(early)));
  (void)ask(log_);

  EXPECT_EQ(known(views_, "two"), seen(state_, "two"));
}

// ---- random schedules ----

// Questions and answers on their way: each may be lost, come twice, or come late.
class Follower {
 public:
  Follower(std::set<std::string> jobs, bool all) { views_.want(std::move(jobs), all); }

  void want(std::set<std::string> jobs, bool all) { views_.want(std::move(jobs), all); }
  void ask() { up_.push_back(views_.request()); }

  void answer(const ViewLog& log, std::size_t index, bool keep) {
    down_.push_back(log.answer(up_[index]));
    if (!keep) up_.erase(up_.begin() + static_cast<std::ptrdiff_t>(index));
  }
  // Whether it was taken, and what it was.
  std::optional<v1::JobChanges> hear(std::size_t index, bool keep) {
    const v1::JobChanges answer = down_[index];
    if (!keep) down_.erase(down_.begin() + static_cast<std::ptrdiff_t>(index));
    return views_.take(answer) ? std::optional(answer) : std::nullopt;
  }
  void lose(bool up, std::size_t index) {
    up ? void(up_.erase(up_.begin() + static_cast<std::ptrdiff_t>(index)))
       : void(down_.erase(down_.begin() + static_cast<std::ptrdiff_t>(index)));
  }
  [[nodiscard]] std::size_t num_up() const { return up_.size(); }
  [[nodiscard]] std::size_t num_down() const { return down_.size(); }
  [[nodiscard]] const KnownViews& views() const { return views_; }

 private:
  KnownViews views_;
  std::deque<v1::ChangesReq> up_;
  std::deque<v1::JobChanges> down_;
};

class Schedule {
 public:
  explicit Schedule(std::uint64_t seed) : random_(seed), cluster_(options()) {
    followers_.emplace_back(std::set<std::string>{"job-1"}, false);
    followers_.emplace_back(std::set<std::string>{"job-1", "job-2"}, false);
    followers_.emplace_back(std::set<std::string>{}, true);
    begin_log();
  }

  // What went wrong; empty: nothing.
  std::string run() {
    for (int i = 0; i < 400 && fault_.empty(); ++i) {
      move_cluster();
      if (one_in(3)) look();
      for (Follower& follower : followers_) move_network(follower);
    }
    look();
    for (Follower& follower : followers_) {
      // Everything that is under way comes late, then the network is well again.
      while (follower.num_up() > 0) follower.answer(*log_, 0, false);
      while (follower.num_down() > 0) hear(follower, 0, false);
      for (int i = 0; i < 2; ++i) {
        follower.ask();
        follower.answer(*log_, 0, false);
        hear(follower, 0, false);
      }
      if (fault_.empty()) compare(follower, looks_[{epoch_, last_}], "in the end");
    }
    return fault_.empty() ? cluster_.violation() : fault_;
  }

 private:
  test::ClusterOptions options() {
    test::ClusterOptions options;
    options.num_nodes = 4;
    options.job = test::small_job(2, 4);
    options.job.restart.budget.max_restarts = 20;
    options.job.recruits = one_in(2);
    options.config.keep_ended = Milliseconds(3'000);
    options.work = Milliseconds(500 + below(20'000));
    return options;
  }

  std::uint64_t below(std::uint64_t n) { return random_() % n; }
  bool one_in(unsigned n) { return below(n) == 0; }

  void move_cluster() {
    const auto moves = cluster_.moves(2);
    const int index = static_cast<int>(below(cluster_.num_nodes()));
    auto& node = cluster_.node(index);
    switch (below(24)) {
      case 0:
        if (node.is_agent_up && node.workers.phase == test::Workers::Phase::kRunning)
          return cluster_.apply({MoveKind::kFailRank, index});
        break;
      case 1:
        if (node.is_agent_up && node.connection != 0)
          return cluster_.apply({MoveKind::kCrashNode, index});
        break;
      case 2:
        if (cluster_.is_coordinator_up()) {
          cluster_.apply({MoveKind::kCrashCoordinator});
          return cluster_.apply({MoveKind::kStartCoordinator});
        }
        break;
      case 3: {
        if (!cluster_.is_coordinator_up()) break;
        JobDescription job = test::small_job(1, 2);
        job.job_uuid = "job-" + std::to_string(2 + below(3));
        job.job_id = job.job_uuid;
        return cluster_.tell(StartJob{.request_id = job.job_uuid, .job = job});
      }
      case 4:
        if (cluster_.is_coordinator_up())
          return cluster_.tell(StopJob{.job_uuid = "job-" + std::to_string(1 + below(4))});
        break;
      default:
        break;
    }
    if (moves.empty() || one_in(8)) return cluster_.apply({MoveKind::kAdvance});
    cluster_.apply(moves[below(moves.size())]);
  }

  void begin_log() {
    epoch_ = cluster_.state().epoch;
    log_ = std::make_unique<ViewLog>(epoch_);
    ended_.clear();
    look();
  }

  // Numbers the changes, and keeps what everybody who is at this number has to know.
  void look() {
    if (!cluster_.is_coordinator_up()) return;
    if (cluster_.state().epoch != epoch_) return begin_log();
    log_->look(cluster_.state());
    v1::ChangesReq all;
    all.set_all(true);
    last_ = log_->answer(all).now().number();
    auto& look = looks_[{epoch_, last_}];
    look.clear();
    for (const auto& [uuid, job] : cluster_.state().jobs) {
      // One that has ended stays as it was then.
      const auto frozen = ended_.try_emplace(uuid, "").first;
      const bool is_frozen = is_terminal(job.phase) && !frozen->second.empty();
      look[uuid] = is_frozen ? frozen->second : seen(cluster_.state(), uuid);
      frozen->second = is_terminal(job.phase) ? look[uuid] : "";
    }
    std::erase_if(ended_, [&](const auto& entry) { return !look.contains(entry.first); });
  }

  void move_network(Follower& follower) {
    if (one_in(3)) follower.ask();
    if (one_in(40)) follower.want({"job-1", "job-" + std::to_string(2 + below(3))}, one_in(3));
    if (follower.num_up() > 0 && one_in(2))
      follower.answer(*log_, below(follower.num_up()), one_in(4));
    if (follower.num_down() > 0 && one_in(2)) hear(follower, below(follower.num_down()), one_in(4));
    if (follower.num_up() > 0 && one_in(8)) follower.lose(true, below(follower.num_up()));
    if (follower.num_down() > 0 && one_in(8)) follower.lose(false, below(follower.num_down()));
  }

  void hear(Follower& follower, std::size_t index, bool keep) {
    const auto taken = follower.hear(index, keep);
    if (!taken) return;
    const auto look = looks_.find({taken->now().log(), taken->now().number()});
    if (look == looks_.end()) {
      fault_ = "an answer of a number that never was";
    } else {
      compare(follower, look->second, "at number " + std::to_string(taken->now().number()));
    }
  }

  void compare(const Follower& follower,
               const std::map<std::string, std::string>& look,
               const std::string& when) {
    const v1::ChangesReq asks = follower.views().request();
    std::set<std::string> wanted(asks.jobs().begin(), asks.jobs().end());
    if (asks.all()) {
      for (const auto& [uuid, text] : look) wanted.insert(uuid);
    }
    for (const std::string& uuid : follower.views().uuids()) {
      if (!look.contains(uuid)) fault_ = uuid + " is known and is not there, " + when;
    }
    for (const std::string& uuid : wanted) {
      const auto there = look.find(uuid);
      if (there != look.end() && known(follower.views(), uuid) != there->second)
        fault_ = uuid + " looks different, " + when;
    }
  }

  std::mt19937_64 random_;
  VirtualCluster cluster_;
  std::unique_ptr<ViewLog> log_;
  std::uint64_t epoch_ = 0;
  std::uint64_t last_ = 0;
  std::map<std::pair<std::uint64_t, std::uint64_t>, std::map<std::string, std::string>> looks_;
  std::map<std::string, std::string> ended_;
  std::deque<Follower> followers_;
  std::string fault_;
};

TEST(JobChangesSchedules, WhoMissesAnswersEndsWithTheViewOfWhoDoesNot) {
  const auto end = std::chrono::steady_clock::now() + accel::test::test_budget(0.1);
  const std::uint64_t first = accel::test::test_seed() * 1'000'000;
  const std::uint64_t most = accel::test::is_long_run() ? 20'000 : 2'000;
  std::uint64_t done = 0;
  for (; done < most; ++done) {
    const bool is_over = std::chrono::steady_clock::now() > end;
    if (is_over && !accel::test::is_long_run()) break;
    ASSERT_EQ(Schedule(first + done).run(), "") << "seed " << first + done;
  }
  std::printf("%llu schedules from seed %llu\n",
              static_cast<unsigned long long>(done),
              static_cast<unsigned long long>(first));
}

}  // namespace
}  // namespace accel::agent::job_changes_test
