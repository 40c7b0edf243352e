#include "agent/job_page.h"

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

}  // namespace
}  // namespace accel::agent::job_page_test
