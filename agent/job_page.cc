#include "agent/job_page.h"

#include <algorithm>
#include <utility>

namespace accel::agent {

bool JobPage::add(v1::Job job) {
  bytes_ += job.ByteSizeLong();
  list_.set_more(list_.jobs_size() > 0 && bytes_ > kPageBytes);
  if (!list_.more()) *list_.add_jobs() = std::move(job);
  return !list_.more();
}

void fill_page(std::vector<v1::Job> jobs, const std::string& after, v1::JobList& list) {
  const auto last = std::find_if(
      jobs.begin(), jobs.end(), [&](const v1::Job& job) { return job.job_uuid() == after; });
  auto next = after.empty() || last == jobs.end() ? jobs.begin() : std::next(last);
  JobPage page(list);
  while (next != jobs.end() && page.add(std::move(*next))) ++next;
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
