#include "agent/jobs/named_job.h"

#include <algorithm>
#include <tuple>

#include "agent/calls/grpc_status.h"
#include "agent/jobs/job_state.h"

namespace accel::agent {
namespace {

bool is_newer(const NamedJob& job, const NamedJob& than) {
  return std::tuple(!job.has_ended, job.order) > std::tuple(!than.has_ended, than.order);
}

bool is_of_same_user(const NamedJob& job, const NamedJob& other) {
  return !job.user.empty() && job.user == other.user;
}

}  // namespace

Result<std::size_t> choose_named(const std::vector<NamedJob>& jobs, const std::string& named) {
  const NamedJob* own = nullptr;
  std::vector<const NamedJob*> others;  // the newest of each user
  for (const NamedJob& job : jobs) {
    if (job.uuid == named) return static_cast<std::size_t>(&job - jobs.data());
    if (job.name != named) continue;
    if (job.is_own) {
      if (own == nullptr || is_newer(job, *own)) own = &job;
      continue;
    }
    const auto known = std::find_if(others.begin(), others.end(), [&job](const NamedJob* other) {
      return is_of_same_user(job, *other);
    });
    if (known == others.end()) {
      others.push_back(&job);
    } else if (is_newer(job, **known)) {
      *known = &job;
    }
  }
  if (own == nullptr && others.empty()) return unknown_job(named);
  if (own == nullptr && others.size() > 1) {
    std::vector<std::string> holders;
    for (const NamedJob* job : others)
      holders.push_back(std::string(job->user) + " (" + std::string(job->uuid) + ")");
    return ambiguous_job(named, holders);
  }
  const NamedJob* const chosen = own != nullptr ? own : others.front();
  return static_cast<std::size_t>(chosen - jobs.data());
}

Result<const v1::Job*> find_named(const std::vector<const v1::Job*>& jobs,
                                  const std::string& named,
                                  std::optional<uid_t> own,
                                  const std::function<bool(const v1::Job&)>& may_see) {
  std::vector<const v1::Job*> seen;
  std::vector<NamedJob> names;
  for (const v1::Job* job : jobs) {
    if (!may_see(*job)) continue;
    seen.push_back(job);
    names.push_back({.uuid = job->job_uuid(),
                     .name = job->job_id(),
                     .user = job->user(),
                     .is_own = own && job->uid() == *own,
                     .has_ended = has_ended(*job),
                     .order = static_cast<std::int64_t>(names.size())});
  }
  const auto chosen = choose_named(names, named);
  if (!chosen) return chosen.error();
  return seen[*chosen];
}

}  // namespace accel::agent
