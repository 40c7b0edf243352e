#include "agent/jobs/named_job.h"

#include "agent/calls/grpc_status.h"

namespace accel::agent {

Result<const v1::Job*> find_named(const std::vector<const v1::Job*>& jobs,
                                  const std::string& named,
                                  std::optional<uid_t> own,
                                  const std::function<bool(const v1::Job&)>& may_see) {
  const v1::Job* found = nullptr;
  const v1::Job* owns = nullptr;
  std::vector<std::string> holders;
  for (const v1::Job* job : jobs) {
    const bool is_exact = job->job_uuid() == named;
    if ((!is_exact && job->job_id() != named) || !may_see(*job)) continue;
    if (is_exact) return job;
    if (own && job->uid() == *own) owns = job;
    found = job;
    holders.push_back(job->user() + " (" + job->job_uuid() + ")");
  }
  if (owns != nullptr) return owns;
  if (holders.size() > 1) return ambiguous_job(named, holders);
  if (found == nullptr) return unknown_job(named);
  return found;
}

}  // namespace accel::agent
