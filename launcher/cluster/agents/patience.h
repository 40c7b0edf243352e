// Patience: what a client does while the agent of its job is restarted or upgraded, or another coordinator is elected.
//
// The workers go on without an agent for Job.hold_seconds, those of many nodes without a coordinator for 60 s. So a client
// that has a job waits as long, and a little longer for the agent to say what became of the job; only then it gives up. A
// client that has none yet waits for a coordinator alone: an agent that is not there is an error at once.
//
//   answered --no answer--> waiting --an answer--> answered
//                              '--the limit is over--> given up
//
// Threads:  one; try_again() sleeps.
#pragma once

#include <string>

#include <accel/result.h>

#include "accel/v1/control.pb.h"
#include "launcher/cluster/agents/agent_client.h"
#include "runtime/clock.h"

namespace accel::cluster {

class Patience {
 public:
  // With the agent that has this job.
  explicit Patience(const v1::Job& job);
  // With the coordinator. What is asked so must be safe to ask twice.
  explicit Patience(Duration limit) : limit_(limit), waits_for_agent_(false) {}

  // Whether it is worth to ask again after this error. The first time that no coordinator answers, `notice` is what to
  // tell the user; else it is empty.
  [[nodiscard]] bool is_worth_it(const Error& error, TimePoint now, std::string& notice);

  // The same; says the notice on stderr, and waits a moment before it says yes.
  [[nodiscard]] bool try_again(const Error& error);
  void answered();

 private:
  SteadyClock clock_;
  Duration limit_;
  bool waits_for_agent_;
  bool is_told_ = false;
  TimePoint gives_up_at_ = TimePoint::max();
};

// A unary call that waits for who is away.
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

// Gives the job to the agent, once, however often it has to be asked: each try has the same request_id.
[[nodiscard]] Result<v1::Job> submit_patiently(const AgentClient& client,
                                               const v1::JobSpec& spec,
                                               Patience patience);

// Copies what the workers of a job write to stdout and stderr, as `request` says. When the agent goes and comes back
// each stream goes on where it was.
[[nodiscard]] Result<void> copy_logs(const AgentClient& client,
                                     v1::LogReq request,
                                     Patience patience);

}  // namespace accel::cluster
