// What an agent does about the jobs of the agent before it.
//
//   record          | and                                    | the job
//   ----------------+----------------------------------------+--------------------------------------------------
//   ended           |                                        | shown as it is
//   runs            | the machine was started anew since     | failed, exit code 71
//   runs            | its shim answers                       | goes on: snapshot, then what nobody heard
//   runs            | its shim is gone and left its last word | ended, as the shim says
//   runs            | nothing of it, or no shim, is left     | failed, 71; what is left is killed
//   damaged         | its shim is found by the job's id      | goes on, or is killed: damaged_jobs
//   damaged         | no shim is found                       | what carries its tags is killed

#include <filesystem>
#include <utility>

#include <sys/stat.h>

#include "agent/access/ticket_book.h"
#include "agent/config/node_address.h"
#include "agent/jobs/job_entry.h"
#include "agent/jobs/job_state.h"
#include "agent/shims/accounts_record.h"
#include "runtime/supervisor/owner/last_word.h"
#include "runtime/supervisor/owner/shim_state.h"

namespace accel::agent {
namespace {

// For stopping what it runs and for its last output, on top of the hold.
constexpr std::chrono::seconds kAfterHold{60};

// The user below whose folder the shim of this job has its files; std::nullopt when there is none.
std::optional<uid_t> find_user_of_shim(const std::string& shims,
                                       const JobFolder::Damaged& damaged) {
  std::error_code failure;
  for (const auto& folder : std::filesystem::directory_iterator(shims, failure)) {
    struct stat info {};
    const std::string path = folder.path().string();
    if (::lstat(path.c_str(), &info) != 0 || !S_ISDIR(info.st_mode)) continue;
    if (folder.path().filename().string() != std::to_string(info.st_uid)) continue;
    const uid_t uid = info.st_uid;
    if (damaged.user && *damaged.user != uid) continue;
    for (const std::string& name : {supervisor::state_file_name(damaged.job_id),
                                    supervisor::last_word_name(damaged.job_id)}) {
      if (::lstat((path + "/" + name).c_str(), &info) == 0) return uid;
    }
  }
  return std::nullopt;
}

}  // namespace

Result<void> JobRunner::recover() {
  auto folder = JobFolder::open(options_.state_dir + "/jobs");
  if (!folder) return std::move(folder).error();
  folder_ = *std::move(folder);
  if (!folder_->complaint().empty())
    log(folder_->complaint() + ": jobs that run now cannot be taken over, and end with their hold");
  auto contents = folder_->read_all();
  const std::string boot = boot_id();
  for (v1::JobRecord& record : contents.records) {
    Entry& kept = *entries_.emplace_back(std::make_unique<Entry>(context_));
    kept.record = std::move(record);
    kept.accounts =
        accounts_of(kept.record.accounts(), kept.record.boot_id() == boot, clock_.now());
    if (!kept.record.request_key().empty()) by_request_[kept.record.request_key()] = &kept;
    if (has_ended(kept.job())) continue;
    if (kept.record.boot_id() == boot) {
      adopt(kept);
    } else {
      end(kept, Error(ErrorCode::kShimLost, "the machine was started anew while the job ran"));
    }
  }
  for (const auto& damaged : contents.damaged) recover_damaged(damaged);
  forget_oldest();
  return {};
}

void JobRunner::adopt(Entry& entry) {
  const v1::Job& job = entry.job();
  const std::string uuid = job.job_uuid();
  const auto hold = std::chrono::seconds(job.hold_seconds());
  if (options_.cgroups != nullptr) options_.cgroups->keep(entry.record.cgroup());
  adopter_.take(
      {.job_id = job.job_id(),
       .node_id = options_.node_id,
       .instance = entry.record.instance(),
       .folder = entry.record.shim_dir(),
       .owner = job.uid(),
       .token = folder_->token_for(record_name(entry.record)),
       .cgroup = entry.record.cgroup(),
       .patience = hold + kAfterHold},
      [this, uuid](ShimAdopter::Found found) {
        // An entry that runs is never forgotten; the look-up is for safety alone.
        if (Entry* known = this->entry(uuid)) take_over(*known, std::move(found));
      },
      [this, id = job.job_id()](const Error& why) {
        log("job " + id + " is not taken over yet: " + why.message());
      });
}

void JobRunner::take_over(Entry& entry, ShimAdopter::Found found) {
  const std::string id = entry.job().job_id();
  if (found.last_word) {
    log("job " + id + " ended while no agent was there");
    if (const auto* refused = std::get_if<supervisor::Refused>(&*found.last_word))
      return end(entry, refused->error);
    return end(entry, std::get<supervisor::JobOutcome>(*found.last_word));
  }
  if (found.lost) {
    if (!entry.record.shim_dir().empty()) return end(entry, *found.lost);
    return end(entry,
               Error(ErrorCode::kShimLost,
                     "the agent ended, and the job with it",
                     "set hold_seconds in the agent's configuration: jobs outlive it then"));
  }
  log("job " + id + " goes on: its shim was taken over");
  watch(entry, std::move(found.host));
  take_over_stop(entry);
  // The one that comes first was made before the events that nobody heard; this one stands behind them.
  entry.shim.request(supervisor::TakeSnapshot{});
  entry.shim.read();
}

// The shim takes a second stop for impatience, and kills: so it is told again only when it does not know.
void JobRunner::take_over_stop(Entry& entry) {
  if (!entry.record.asked_to_stop()) return;
  if (std::exchange(entry.has_unsent_stop, false) || entry.record.stop().kill())
    return order_stop(entry);
  entry.may_owe_stop = true;
  limit_stop(entry);
}

void JobRunner::recover_damaged(const JobFolder::Damaged& damaged) {
  log("the record of job " + damaged.job_id + " cannot be used: " + damaged.error.message());
  const std::string shims = options_.runtime_dir + "/shims";
  const auto uid = find_user_of_shim(shims, damaged);
  if (uid && find(damaged.job_id, *uid) != nullptr) return;
  // With another key than the one of then its instance is not known, and its name has to do.
  const std::string instance =
      folder_->complaint().empty() ? folder_->instance_for(damaged.name) : "";
  const std::string cgroup =
      options_.cgroups == nullptr ? "" : options_.cgroups->find(damaged.name);
  if (!uid || !options_.adopts_damaged) {
    const auto ended = supervisor::end_job(damaged.job_id, options_.node_id, instance, cgroup);
    log("job " + damaged.job_id + " without a record: " + std::to_string(ended.killed.size()) +
        " of its processes were killed" + (ended.is_clean ? "" : ", some did not end"));
    if (uid) supervisor::remove_last_word(shims + "/" + std::to_string(*uid), damaged.job_id);
    return;
  }
  const auto user = find_user(*uid);
  Entry& kept = *entries_.emplace_back(std::make_unique<Entry>(context_));
  kept.record.set_shim_dir(shims + "/" + std::to_string(*uid));
  kept.record.set_log_dir(options_.log_dir + "/" + std::to_string(*uid));
  kept.record.set_boot_id(boot_id());
  kept.record.set_instance(instance);
  kept.record.set_key(damaged.name);
  kept.record.set_cgroup(cgroup);
  v1::Job& job = kept.job();
  job.set_job_id(damaged.job_id);
  job.set_job_uuid(to_hex(random_bytes(16)));
  job.set_user(user ? user->name : std::to_string(*uid));
  job.set_uid(*uid);
  job.set_state(v1::JOB_STATE_RUNNING);
  job.set_hold_seconds(static_cast<std::uint32_t>(options_.hold.count() / 1000));
  job.set_report("taken over without its record, which was damaged\n");
  stamp(*job.mutable_started());
  kept.accounts.begin(clock_.now());
  write_record(kept);
  adopt(kept);
}

}  // namespace accel::agent
