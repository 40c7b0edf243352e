// What an agent does about its parts in jobs of many nodes that the agent before it left.
//
//   record     | and                                  | the part
//   -----------+--------------------------------------+---------------------------------------------------------
//   good       | its shim answers                     | goes on: where it stands, then what nobody heard
//   good       | its shim is gone, or does not answer | what is left is killed; its end is told as the shim's last
//              |                                      | word says, else as lost
//   good       | the machine was started anew since   | forgotten: nothing of it can be left
//   damaged    |                                      | what carries its tags is killed; it is lost to its job
//
// What becomes of a part that goes on is the coordinator's affair: Hello names it with its generation.

#include <algorithm>

#include "agent/jobs/job_request.h"
#include "agent/parts/node_jobs.h"
#include "agent/rendezvous/job_wire.h"
#include "runtime/supervisor/owner/last_word.h"

namespace accel::agent {
namespace {

// All parts wait for the last one, and a node that does not come back in time is lost.
constexpr std::chrono::seconds kTakeOverLimit{10};

// Groups and home are needed for a new shim alone, and looked up again then.
UserAccount user_of(const v1::Job& job) {
  if (auto user = find_user(job.user()); user && user->credentials.uid == job.uid())
    return *std::move(user);
  UserAccount user;
  user.name = job.user();
  user.credentials.uid = job.uid();
  return user;
}

}  // namespace

Result<void> NodeJobs::write_record(const Part& part) const {
  if (part.shim_dir.empty()) return {};
  v1::JobRecord record;
  v1::Job& job = *record.mutable_job();
  job.set_job_id(part.spec.job_id());
  job.set_job_uuid(part.spec.job_uuid());
  job.set_user(part.user.name);
  job.set_uid(part.user.credentials.uid);
  job.set_generation(part.generation);
  job.set_hold_seconds(static_cast<std::uint32_t>(options_.hold.count() / 1000));
  *record.mutable_spec() = part.spec;
  record.mutable_spec()->clear_env();
  record.set_shim_dir(part.shim_dir);
  record.set_boot_id(options_.node.boot_id);
  record.set_key(part.record_name);
  record.set_instance(options_.records->instance_for(part.record_name));
  record.set_cgroup(part.cgroup);
  v1::PartSeat& seat = *record.mutable_seat();
  seat.set_leader_epoch(part.leader_epoch);
  seat.set_node_index(static_cast<std::uint32_t>(part.node_index));
  seat.set_first_rank(static_cast<std::uint32_t>(part.first_rank));
  seat.set_num_ranks(static_cast<std::uint32_t>(part.num_ranks));
  return options_.records->write(record);
}

void NodeJobs::remove_record(const Part& part) const {
  if (part.shim_dir.empty()) return;
  options_.records->remove(part.record_name);
  supervisor::remove_last_word(part.shim_dir, part.spec.job_id());
}

void NodeJobs::recover() {
  if (!options_.records) return;
  const bool is_key_good = options_.records->complaint().empty();
  if (!is_key_good)
    handlers_.log(options_.records->complaint() +
                  ": parts of jobs over several nodes cannot be taken over, and end");
  const auto contents = options_.records->read_all();
  for (const auto& damaged : contents.damaged) {
    // With another key than the one of then its instance is not known, and its name has to do.
    const auto ended = supervisor::end_job(
        damaged.job_id,
        options_.node.node_id,
        is_key_good ? options_.records->instance_for(damaged.name) : "",
        options_.cgroups == nullptr ? "" : options_.cgroups->find(damaged.name));
    handlers_.log("the record of the part of job " + damaged.job_id + " cannot be used: " +
                  damaged.error.message() + "; " + std::to_string(ended.killed.size()) +
                  " of its processes were killed" + (ended.is_clean ? "" : ", some did not end"));
  }
  for (const v1::JobRecord& record : contents.records) {
    const std::string& id = record.job().job_id();
    if (record.has_seat() && record.boot_id() == options_.node.boot_id) {
      take_up(record);
    } else {
      handlers_.log("job " + id + ": the machine was started anew, its part is gone");
      options_.records->remove(record_name(record));
    }
  }
}

void NodeJobs::take_up(const v1::JobRecord& record) {
  const v1::Job& job = record.job();
  const v1::PartSeat& seat = record.seat();
  auto made = std::make_unique<Part>();
  made->spec = record.spec();
  made->user = user_of(job);
  made->record_name = record_name(record);
  made->instance = record.instance();
  made->generation = job.generation();
  made->leader_epoch = seat.leader_epoch();
  made->node_index = static_cast<int>(seat.node_index());
  made->first_rank = static_cast<int>(seat.first_rank());
  made->num_ranks = std::max(1, static_cast<int>(seat.num_ranks()));
  made->shim_dir = record.shim_dir();
  made->cgroup = record.cgroup();
  if (options_.cgroups != nullptr) options_.cgroups->keep(made->cgroup);
  made->is_awaited = made->is_recovered = true;
  Part& part = *parts_.emplace_back(std::move(made));
  // Its shim has the rest; for another one it is made anew.
  make_workers(part, {.stop = stop_policy_of(part.spec)});
  if (!adopter_) adopter_ = std::make_unique<ShimAdopter>(loop_);
  adopter_->take(
      {.job_id = job.job_id(),
       .node_id = options_.node.node_id,
       .instance = part.instance,
       .folder = part.shim_dir,
       .owner = job.uid(),
       .token = options_.records->token_for(part.record_name),
       .cgroup = part.cgroup,
       .patience = kTakeOverLimit},
      [this, uuid = job.job_uuid()](ShimAdopter::Found found) {
        if (Part* known = part_of(uuid)) take_over(*known, std::move(found));
      },
      [this, id = job.job_id()](const Error& why) {
        handlers_.log("the part of job " + id + " is not taken over yet: " + why.message());
      });
}

void NodeJobs::take_over(Part& part, ShimAdopter::Found found) {
  const HeldGeneration held = {.generation = part.generation,
                               .hosts_store = part.node_index == 0,
                               .first_rank = part.first_rank,
                               .num_ranks = part.num_ranks};
  const std::string about = "job " + part.spec.job_id();
  if (found.host) {
    handlers_.log(about + " goes on: the shim of its part was taken over");
    return part.workers->adopt(std::move(found.host), held);
  }
  std::vector<supervisor::WorkerExit> exits;
  const NodeWorkers::Left left = {.num_unkillable = found.num_unkillable,
                                  .is_proved = found.is_end_proved};
  if (found.lost) {
    handlers_.log(about + ": its part is lost: " + found.lost->message());
  } else {
    handlers_.log(about + ": its part ended while no agent was there");
    if (const auto* outcome = std::get_if<supervisor::JobOutcome>(&*found.last_word))
      exits = outcome->exits;
  }
  part.workers->adopt_end(held, exits, left);
}

void NodeJobs::on_adopted(const JobUuid& uuid, const AdoptedGeneration& adopted) {
  const Part* part = part_of(uuid);
  if (part == nullptr) return;
  auto job = std::make_shared<const JobDescription>(describe_job(part->spec));
  const TimePoint now = SteadyClock().now();
  // Never later than now: the shim is of its user, and the time counts for the jobs of others too.
  const TimePoint acked_at =
      adopted.lease_until ? std::min(now, *adopted.lease_until - job->fence.lease) : now;
  const MemberPhase phase = adopted.is_prepared ? MemberPhase::kPreparing : MemberPhase::kRunning;
  handle(Adopted{.job = job,
                 .join = Join{.job_uuid = uuid, .slots = job->procs_per_node},
                 .local = {.job_uuid = uuid,
                           .leader_epoch = part->leader_epoch,
                           .generation = part->generation,
                           .phase = phase},
                 .num_ranks = part->num_ranks,
                 .acked_at = acked_at});
}

void NodeJobs::on_caught_up(const JobUuid& uuid) {
  Part* part = part_of(uuid);
  if (part == nullptr) return;
  part->is_awaited = false;
  if (part->is_leaving) {
    handle(WantLeave{.job_uuid = uuid, .reason = "its agent ends"});
    leave(*part);
  }
  connect_when_settled();
}

void NodeJobs::connect_when_settled() {
  const bool are_awaited =
      std::any_of(parts_.begin(), parts_.end(), [](const auto& part) { return part->is_awaited; });
  if (!are_awaited && !is_closing_) session_.connect();
}

}  // namespace accel::agent
