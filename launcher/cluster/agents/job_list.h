// JobList: all jobs of an agent that one may see, put together from the pages of its answer.
//
// Threads:  any; blocks until the last page is there.
#pragma once

#include <functional>

#include <accel/result.h>

#include "accel/v1/control.pb.h"
#include "launcher/cluster/agents/agent_client.h"

namespace accel::cluster {

// `on_call`: told the context of each call, so that another thread can cancel it, and nullptr when the call is over; may be empty.
// Errors  those of AgentClient::call().
[[nodiscard]] Result<v1::JobList> list_jobs(
    const AgentClient& client,
    v1::ListReq request,
    const std::function<void(grpc::ClientContext*)>& on_call = {});

}  // namespace accel::cluster
