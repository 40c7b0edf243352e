#include "launcher/cluster/agents/job_list.h"

#include <utility>

#include "agent/jobs/job_page.h"

namespace accel::cluster {

Result<v1::JobList> list_jobs(const AgentClient& client,
                              v1::ListReq request,
                              const std::function<void(grpc::ClientContext*)>& on_call) {
  agent::JobPages pages;
  do {
    auto call = client.begin();
    if (!call) return std::move(call).error();
    v1::JobList page;
    if (on_call) on_call(call->context.get());
    const grpc::Status status = call->stub->ListJobs(call->context.get(), request, &page);
    if (on_call) on_call(nullptr);
    if (!status.ok()) return client.to_error(status);
    request.set_after(pages.take(std::move(page)));
  } while (!request.after().empty());
  return pages.list();
}

}  // namespace accel::cluster
