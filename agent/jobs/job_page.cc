#include "agent/jobs/job_page.h"

#include <algorithm>
#include <utility>

namespace accel::agent {

bool JobPage::add(v1::Job job) {
  bytes_ += job.ByteSizeLong();
  list_.set_more(list_.jobs_size() > 0 && bytes_ > kPageBytes);
  if (!list_.more()) *list_.add_jobs() = std::move(job);
  return !list_.more();
}

namespace {

auto find_uuid(std::vector<v1::Job>& jobs, const std::string& uuid) {
  return std::find_if(
      jobs.begin(), jobs.end(), [&](const v1::Job& job) { return job.job_uuid() == uuid; });
}

}  // namespace

void fill_page(std::vector<v1::Job> jobs, const std::string& after, v1::JobList& list) {
  const auto last = find_uuid(jobs, after);
  auto next = after.empty() || last == jobs.end() ? jobs.begin() : std::next(last);
  JobPage page(list);
  while (next != jobs.end() && page.add(std::move(*next))) ++next;
}

void join_page(std::vector<v1::Job> own,
               const std::string& after,
               v1::JobList& list,
               const AskElsewhere& ask,
               const std::function<void()>& done) {
  if (find_uuid(own, after) != own.end()) {
    fill_page(std::move(own), after, list);
    return done();
  }
  ask(after, [own = std::move(own), &list, ask, done](const Result<JobsElsewhere>& elsewhere) {
    JobPage page(list);
    bool has_room = true;
    const auto add = [&](const std::vector<v1::Job>& jobs) {
      for (auto job = jobs.begin(); has_room && job != jobs.end(); ++job) has_room = page.add(*job);
    };
    if (elsewhere) {
      if (list.notice().empty()) list.set_notice(elsewhere->notice);
      add(elsewhere->jobs);
      const bool has_more = elsewhere->more && !elsewhere->last.empty();
      if (has_more && list.jobs().empty()) return join_page(own, elsewhere->last, list, ask, done);
      if (has_more) {
        list.set_more(true);
        return done();
      }
    } else {
      list.set_notice("jobs of many nodes are missing: " + elsewhere.error().message());
    }
    add(own);
    done();
  });
}

std::string JobPages::take(v1::JobList page) {
  const bool is_first = num_pages_++ == 0;
  const std::string last = page.jobs().empty() ? "" : page.jobs().rbegin()->job_uuid();
  for (v1::Job& job : *page.mutable_jobs()) {
    if (known_.insert(job.job_uuid()).second) *list_.add_jobs() = std::move(job);
  }
  const bool is_last = !page.more() || num_pages_ >= kMostPages;
  page.clear_jobs();
  page.clear_more();
  if (is_first) list_.MergeFrom(page);
  if (list_.notice().empty()) list_.set_notice(page.notice());
  return is_last ? "" : last;
}

}  // namespace accel::agent
