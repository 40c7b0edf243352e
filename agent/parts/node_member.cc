#include "agent/parts/node_member.h"

#include <utility>

namespace accel::agent {

NodeMember::NodeMember(boost::asio::io_context& loop,
                       std::shared_ptr<grpc::Channel> channel,
                       NodeMemberOptions options,
                       Handlers handlers)
    : options_(std::move(options)),
      handlers_(std::move(handlers)),
      session_(loop,
               std::move(channel),
               {.node = options_.node,
                .token_key = options_.token_key,
                .job = options_.job,
                .open_leader = options_.open_channel},
               {.on_action = [this](const MemberAction& action) { carry_out(action); },
                .on_beat = [this] { workers_.ask_steps(); },
                .on_connection = handlers_.on_connection,
                .on_turned_away = handlers_.on_line,
                .on_refused = handlers_.on_refused}),
      workers_(loop,
               options_.workers,
               {.on_parked = [this](WorkersParked event) { session_.handle(std::move(event)); },
                .on_exited = [this](WorkerExited event) { take_exit(std::move(event)); },
                .on_gone =
                    [this](WorkersGone event) {
                      session_.handle(std::move(event));
                      if (is_leaving_) finish();
                    },
                .on_steps = [this](StepsMade event) { session_.handle(std::move(event)); },
                .on_notice = handlers_.on_line,
                .on_finished = handlers_.on_finished}) {}

void NodeMember::start() {
  session_.handle(WantJob{Join{.job_uuid = options_.job.job_uuid(),
                               .slots = static_cast<int>(options_.workers.spec.workers.size()),
                               .preferred_index = options_.preferred_index}});
  session_.connect();
}

void NodeMember::leave(const std::string& reason, supervisor::Milliseconds grace) {
  if (is_leaving_) return;
  is_leaving_ = true;
  const auto* present = membership();
  const std::uint64_t generation = present == nullptr ? 0 : present->generation;
  session_.handle(WantLeave{.job_uuid = options_.job.job_uuid(), .reason = reason});
  // What the coordinator has to say about it does not matter to this node any more.
  workers_.stop({.job_uuid = options_.job.job_uuid(),
                 .generation = generation,
                 .grace = grace,
                 .reason = StopReason::kCancelled});
}

// A preemption is no failure of the job, which would be restarted for it.
void NodeMember::take_exit(WorkerExited exited) {
  const int requeue = options_.workers.spec.stop.requeue_exit_code;
  if (!is_leaving_ && exited.exit.is_failure() && exited.exit.is_preempted(requeue))
    return handlers_.on_preempted(exited.exit.global_rank);
  session_.handle(std::move(exited));
}

void NodeMember::stop_workers(supervisor::Milliseconds grace) {
  const auto* present = membership();
  if (present == nullptr || present->phase != MemberPhase::kRunning) return;
  workers_.stop({.job_uuid = options_.job.job_uuid(),
                 .generation = present->generation,
                 .grace = grace,
                 .reason = StopReason::kNodeLost});
}

const LocalMembership* NodeMember::membership() const {
  const auto& jobs = session_.state().jobs;
  const auto job = jobs.find(options_.job.job_uuid());
  return job == jobs.end() ? nullptr : &job->second;
}

void NodeMember::finish() {
  workers_.finish();
}

void NodeMember::carry_out(const MemberAction& action) {
  if (const auto* order = std::get_if<ParkWorkers>(&action)) {
    session_.find_members(order->assign, [this, order = *order](std::vector<std::string> members) {
      workers_.park(order, std::move(members));
    });
  } else if (const auto* renewal = std::get_if<RenewLease>(&action)) {
    workers_.renew(*renewal);
  } else if (const auto* release = std::get_if<ReleaseWorkers>(&action)) {
    workers_.release(*release);
  } else if (const auto* stop = std::get_if<StopWorkers>(&action)) {
    workers_.stop(*stop);
  } else if (const auto* tell = std::get_if<TellJob>(&action)) {
    handlers_.on_notice(tell->notice);
  } else if (const auto* quarantine = std::get_if<TellQuarantine>(&action)) {
    handlers_.on_line("this node is set aside: " + quarantine->quarantine.reason);
  }
}

}  // namespace accel::agent
