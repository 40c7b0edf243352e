#include "agent/jobs/job_page.h"

#include <functional>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>

namespace accel::agent::job_page_test {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

v1::Job job(const std::string& uuid, std::size_t bytes = 1) {
  v1::Job made;
  made.set_job_uuid(uuid);
  made.set_report(std::string(bytes, 'x'));
  return made;
}

std::vector<std::string> uuids(const v1::JobList& list) {
  std::vector<std::string> found;
  for (const v1::Job& each : list.jobs()) found.push_back(each.job_uuid());
  return found;
}

v1::JobList page_of(const std::vector<v1::Job>& jobs, const std::string& after) {
  v1::JobList page;
  page.set_node_id("n");
  fill_page(jobs, after, page);
  return page;
}

TEST(JobPage, AShortListIsOnePage) {
  const auto page = page_of({job("c"), job("a")}, "");
  EXPECT_THAT(uuids(page), ElementsAre("c", "a"));
  EXPECT_FALSE(page.more());
}

TEST(JobPage, APageEndsWhereTheNextJobHasNoRoomAndHasOneAtLeast) {
  const std::vector<v1::Job> jobs = {job("c", kPageBytes),
                                     job("a", kPageBytes / 2),
                                     job("b", kPageBytes / 4),
                                     job("d", kPageBytes)};
  EXPECT_THAT(uuids(page_of(jobs, "")), ElementsAre("c"));
  EXPECT_THAT(uuids(page_of(jobs, "c")), ElementsAre("a", "b"));
  EXPECT_TRUE(page_of(jobs, "c").more());
  EXPECT_THAT(uuids(page_of(jobs, "b")), ElementsAre("d"));
  EXPECT_FALSE(page_of(jobs, "b").more());
}

TEST(JobPage, TheLastJobHasNoPageBehindIt) {
  EXPECT_THAT(uuids(page_of({job("a")}, "a")), IsEmpty());
  EXPECT_FALSE(page_of({job("a")}, "a").more());
}

TEST(JobPages, MakeTheWholeListAgain) {
  std::vector<v1::Job> jobs;
  for (int i = 0; i < 40; ++i) jobs.push_back(job(std::to_string(i), kPageBytes / 3));
  JobPages pages;
  std::string after;
  int num_pages = 0;
  do {
    after = pages.take(page_of(jobs, after));
    ++num_pages;
  } while (!after.empty());
  EXPECT_EQ(num_pages, 20);
  EXPECT_EQ(pages.list().jobs_size(), 40);
  EXPECT_EQ(pages.list().jobs(39).job_uuid(), "39");
  EXPECT_EQ(pages.list().node_id(), "n");
  EXPECT_FALSE(pages.list().more());
}

TEST(JobPages, AJobThatWentBetweenTwoPagesLeavesNothingOutAndNothingTwice) {
  std::vector<v1::Job> jobs = {
      job("a", kPageBytes), job("b", kPageBytes), job("c", kPageBytes), job("d", kPageBytes)};
  JobPages pages;
  (void)pages.take(page_of(jobs, ""));
  std::string after = pages.take(page_of(jobs, "a"));
  EXPECT_EQ(after, "b");
  jobs.erase(jobs.begin() + 1);
  for (int i = 0; i < 10 && !after.empty(); ++i) after = pages.take(page_of(jobs, after));
  EXPECT_THAT(uuids(pages.list()), ElementsAre("a", "b", "c", "d"));
}

// A coordinator whose pages are counted.
class Elsewhere {
 public:
  std::map<std::string, v1::Job> jobs;
  std::set<std::string> hidden;  // uuids
  int num_asked = 0;
  bool is_silent = false;

  AskElsewhere ask() {
    return [this](const std::string& after,
                  const std::function<void(const Result<JobsElsewhere>&)>& done) {
      ++num_asked;
      if (is_silent) return done(Error(ErrorCode::kCoordinatorLost, "nobody answers"));
      v1::JobList list;
      JobPage page(list);
      auto next = after.empty() ? jobs.begin() : jobs.upper_bound(after);
      for (bool has_room = true; has_room && next != jobs.end(); ++next)
        has_room = page.add(next->second);
      JobsElsewhere found = {.jobs = {}, .last = {}, .more = list.more(), .notice = {}};
      for (const v1::Job& each : list.jobs()) {
        found.last = each.job_uuid();
        if (hidden.count(each.job_uuid()) == 0) found.jobs.push_back(each);
      }
      done(found);
    };
  }
  void add(const std::string& uuid, std::size_t bytes) { jobs[uuid] = job(uuid, bytes); }
};

// All pages, as a client asks for them; `between` is called before each but the first.
v1::JobList all_pages(
    Elsewhere& elsewhere, std::vector<v1::Job>& own, const std::function<void()>& between = [] {}) {
  JobPages pages;
  std::string after;
  for (int i = 0; i == 0 || !after.empty(); ++i) {
    if (i > 0) between();
    v1::JobList page;
    bool is_done = false;
    join_page(own, after, page, elsewhere.ask(), [&] { is_done = true; });
    EXPECT_TRUE(is_done);
    EXPECT_LE(page.ByteSizeLong(), 2 * kPageBytes);
    after = pages.take(std::move(page));
  }
  return pages.list();
}

TEST(JoinedPages, AListOfManyPagesCostsTheCoordinatorOneQuestionForEach) {
  Elsewhere elsewhere;
  for (int i = 0; i < 40; ++i) elsewhere.add("e" + std::to_string(100 + i), kPageBytes / 3);
  std::vector<v1::Job> own;
  for (int i = 0; i < 40; ++i) own.push_back(job("o" + std::to_string(i), kPageBytes / 3));

  EXPECT_EQ(all_pages(elsewhere, own).jobs_size(), 80);
  EXPECT_EQ(elsewhere.num_asked, 20 + 1);  // the last one had no room for a job of this node
}

TEST(JoinedPages, WithoutJobsElsewhereThereIsOneQuestion) {
  Elsewhere elsewhere;
  std::vector<v1::Job> own = {job("b", kPageBytes), job("a", kPageBytes)};

  EXPECT_THAT(uuids(all_pages(elsewhere, own)), ElementsAre("b", "a"));
  EXPECT_EQ(elsewhere.num_asked, 1);
}

TEST(JoinedPages, PagesOfWhichNothingMayBeSeenEndNoList) {
  Elsewhere elsewhere;
  for (int i = 0; i < 9; ++i) {
    elsewhere.add("e" + std::to_string(i), kPageBytes);
    if (i != 7) elsewhere.hidden.insert("e" + std::to_string(i));
  }
  std::vector<v1::Job> own = {job("o")};

  EXPECT_THAT(uuids(all_pages(elsewhere, own)), ElementsAre("e7", "o"));
  EXPECT_EQ(elsewhere.num_asked, 9);
}

TEST(JoinedPages, JobsThatGoBetweenTwoPagesLeaveNothingOut) {
  Elsewhere elsewhere;
  for (const char* uuid : {"m", "n", "p", "q"}) elsewhere.add(uuid, kPageBytes);
  std::vector<v1::Job> own = {job("z", kPageBytes), job("a", kPageBytes), job("o", kPageBytes)};
  const auto forget_the_last = [&, seen = 0]() mutable {
    ++seen;
    if (seen == 2) elsewhere.jobs.erase("n");
    if (seen == 6) own.erase(own.begin() + 1);
  };

  EXPECT_THAT(uuids(all_pages(elsewhere, own, forget_the_last)),
              ElementsAre("m", "n", "p", "q", "z", "a", "o"));
}

TEST(JoinedPages, WhenTheCoordinatorDoesNotAnswerTheJobsOfThisNodeAreThere) {
  Elsewhere elsewhere;
  elsewhere.is_silent = true;
  std::vector<v1::Job> own = {job("a", kPageBytes), job("b", kPageBytes)};

  const v1::JobList list = all_pages(elsewhere, own);

  EXPECT_THAT(uuids(list), ElementsAre("a", "b"));
  EXPECT_EQ(list.notice(), "jobs of many nodes are missing: nobody answers");
  EXPECT_EQ(elsewhere.num_asked, 1);
}

}  // namespace
}  // namespace accel::agent::job_page_test
