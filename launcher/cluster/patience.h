// Patience: what a client does while the agent of its job is restarted or upgraded.
//
// The workers go on without it for Job.hold_seconds. So a client that has a job waits as long for the agent, and a
// little longer for the agent to say what became of the job; only then it gives up.
//
//   answered --no answer--> waiting --an answer--> answered
//                              '--hold and 15 s are over--> given up
//
// Threads:  one; try_again() sleeps.
#pragma once

#include <chrono>

#include <accel/result.h>

#include "accel/v1/control.pb.h"
#include "launcher/cluster/agent_client.h"
#include "runtime/clock.h"

namespace accel::cluster {

class Patience {
 public:
  explicit Patience(std::chrono::seconds hold);
  explicit Patience(const v1::Job& job) : Patience(std::chrono::seconds(job.hold_seconds())) {}

  // Whether it is worth to try again after this error; waits a moment before it says so.
  [[nodiscard]] bool try_again(const Error& error);
  void answered() { gives_up_at_ = TimePoint::max(); }

 private:
  SteadyClock clock_;
  Duration limit_;
  TimePoint gives_up_at_ = TimePoint::max();
};

// A unary call that waits for an agent that is away.
template <typename Request, typename Response>
[[nodiscard]] Result<Response> call_patiently(
    const AgentClient& client,
    grpc::Status (v1::Control::Stub::*method)(grpc::ClientContext*, const Request&, Response*),
    const Request& request,
    Patience patience) {
  while (true) {
    auto response = client.call(method, request);
    if (response || !patience.try_again(response.error())) return response;
  }
}

// Copies what the workers of a job write to stdout and stderr, as `request` says. When the agent goes and comes back
// each stream goes on where it was.
[[nodiscard]] Result<void> copy_logs(const AgentClient& client,
                                     v1::LogReq request,
                                     Patience patience);

}  // namespace accel::cluster
