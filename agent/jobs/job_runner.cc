#include "agent/jobs/job_runner.h"

#include <algorithm>
#include <csignal>
#include <utility>

#include <unistd.h>

#include "agent/access/caller_shares.h"
#include "agent/access/ticket_book.h"
#include "agent/config/node_address.h"
#include "agent/files/log_folder.h"
#include "agent/files/open_files.h"
#include "agent/files/shim_folder.h"
#include "agent/jobs/job_entry.h"
#include "agent/jobs/job_request.h"
#include "agent/jobs/job_state.h"
#include "agent/shims/accounts_record.h"
#include "agent/shims/heard_workers.h"
#include "agent/shims/job_report.h"
#include "agent/shims/worker_signals.h"
#include "runtime/supervisor/owner/last_word.h"
#include "runtime/text/letter_case.h"
#include "runtime/wall_clock.h"

namespace accel::agent {
namespace {

namespace asio = boost::asio;
using supervisor::StopMode;

constexpr std::chrono::seconds kFirstStepLook{1};  // for the first step of a generation
// What a job's start opens for a moment and what it keeps, beside what the others need to go on: records, logs, calls.
constexpr int kLeastFiles = 64;

// False when nothing is new: a job that is being killed cannot be stopped any harder.
bool note_stop(const supervisor::Stop& stop, v1::JobRecord& record) {
  const bool is_again = record.asked_to_stop();
  if (is_again && record.stop().kill()) return false;
  const auto own = stop_policy_of(record.spec()).grace;
  v1::StopOrder& order = *record.mutable_stop();
  order.set_kill(is_again || stop.mode == StopMode::kKill);
  order.set_signal(stop.signal);
  order.set_grace_ms(stop.grace < own ? stop.grace.count() : -1);
  record.set_asked_to_stop(true);
  return true;
}

// Of a build that kept no order: the ordinary one.
supervisor::Stop stop_of(const v1::JobRecord& record) {
  if (!record.has_stop()) return {.mode = StopMode::kTerminate, .signal = SIGTERM};
  const v1::StopOrder& order = record.stop();
  return {.mode = order.kill() ? StopMode::kKill : StopMode::kTerminate,
          .signal = order.signal(),
          .grace = std::chrono::milliseconds(order.grace_ms())};
}

}  // namespace

JobRunner::JobRunner(asio::io_context& context,
                     JobRunnerOptions options,
                     std::function<void(const v1::Job&)> on_change)
    : context_(context),
      options_(std::move(options)),
      on_change_(std::move(on_change)),
      look_(context),
      adopter_(context) {}

JobRunner::~JobRunner() = default;

Result<supervisor::JobSpec> JobRunner::make_spec(const v1::JobSpec& request,
                                                 const UserAccount& user,
                                                 v1::JobRecord& record) const {
  const int num_workers = std::max(1, static_cast<int>(request.procs_per_node()));
  const LocalPart part = {.num_ranks = num_workers, .world_size = num_workers};
  std::vector<std::string> scrubbed;
  const bool is_other_user = user.credentials.uid != ::geteuid();
  auto spec = make_job_spec(request, part, user, record.log_dir(), is_other_user, scrubbed);
  spec.node_id = options_.node_id;
  spec.instance = record.instance();
  if (auto bound = apply_affinity(request, GrantedCpus(), spec); !bound)
    return std::move(bound).error();
  if (auto passed = pass_environment(request, process_env(), is_other_user, spec); !passed)
    return std::move(passed).error();
  if (!record.shim_dir().empty()) {
    spec.owner.on_loss = supervisor::OwnerLoss::kHold;
    spec.owner.hold = options_.hold;
    spec.owner.runtime_dir = record.shim_dir();
    spec.owner.token = folder_->token_for(record_name(record));
  }
  if (scrubbed.empty()) return spec;
  std::string names;
  for (const auto& name : scrubbed) names += (names.empty() ? "" : ", ") + name;
  record.mutable_job()->set_report(
      "left out of the environment, because the agent runs as another user: " + names + "\n");
  return spec;
}

// The record is there before the shim: one that outlives us is always found.
Result<void> JobRunner::launch(Entry& made,
                               const supervisor::JobSpec& spec,
                               const UserAccount& user) {
  if (!made.record.shim_dir().empty())
    supervisor::remove_last_word(made.record.shim_dir(), spec.job_id);
  supervisor::ShimHostOptions host;
  if (options_.changes_user) host.credentials = user.credentials;
  if (options_.cgroups != nullptr) {
    auto cgroup = options_.cgroups->make(record_name(made.record), host.credentials);
    if (!cgroup) return std::move(cgroup).error();
    host.cgroup = *std::move(cgroup);
    made.record.set_cgroup(host.cgroup);
  }
  *made.record.mutable_accounts() = to_record(made.accounts);
  if (auto written = folder_->write(made.record); !written) {
    remove_cgroup(made);
    return written;
  }
  host.shim_path = options_.shim_path;
  host.owner = supervisor::OwnerKind::kManyJobs;
  host.env = EnvMap{{"PATH", "/usr/local/bin:/usr/bin:/bin"}};
  std::fill(std::begin(host.stdio), std::end(host.stdio), null_device());
  auto started = supervisor::start_shim(spec, std::move(host));
  if (!started) {
    folder_->remove(record_name(made.record));
    remove_cgroup(made);
    return std::move(started).error();
  }
  watch(made, *std::move(started));
  return {};
}

void JobRunner::remove_cgroup(const Entry& entry) const {
  if (options_.cgroups != nullptr) options_.cgroups->remove(entry.record.cgroup());
}

void JobRunner::watch(Entry& entry, std::unique_ptr<supervisor::WorkerHost> host) {
  entry.shim.open(std::move(host),
                  {.on_event = [this, &entry](const auto& event) { on_event(entry, event); },
                   .on_lost = [this, &entry](const Error& error) { end(entry, error); }},
                  most_ranks(entry));
}

Result<void> JobRunner::check_room(const UserAccount& user) const {
  CallerShares shares(
      {.most = options_.max_jobs,
       .most_each = options_.max_jobs_each > 0 ? options_.max_jobs_each : options_.max_jobs,
       .kept = options_.max_jobs / 8,
       .things = "jobs"},
      favoured_users());
  for (const auto& entry : entries_) {
    if (!has_ended(entry->job())) shares.add(caller_of(entry->job().uid()));
  }
  const auto full = shares.take(caller_of(user.credentials.uid));
  if (!full) return {};
  return Error(
      ErrorCode::kAgentRefused,
      "no more jobs here for " + user.name + ": " + *full,
      "wait for one to end, or raise max_jobs or max_jobs_each in the agent's configuration");
}

Result<const v1::Job*> JobRunner::start(v1::JobSpec request,
                                        const UserAccount& user,
                                        const std::string& request_id) {
  const std::string key =
      request_id.empty() ? "" : std::to_string(user.credentials.uid) + "/" + request_id;
  if (const auto known = by_request_.find(key); !key.empty() && known != by_request_.end()) {
    return &known->second->job();
  }
  if (is_draining_) {
    return Error(ErrorCode::kAgentRefused,
                 "this node is drained: it starts no jobs",
                 "use another node, or `accel undrain`");
  }
  if (auto room = check_room(user); !room) return std::move(room).error();
  if (const int left = open_files_left(); left < kLeastFiles) {
    return Error(ErrorCode::kAgentRefused,
                 "this agent may open only " + std::to_string(left) + " more files, and keeps " +
                     std::to_string(kLeastFiles) + " for what runs",
                 "wait for a job to end, or raise the agent's limit (`ulimit -n`, LimitNOFILE)");
  }
  if (auto checked = check_one_node_request(request); !checked) return std::move(checked).error();
  if (request.job_id().empty()) request.set_job_id(make_job_id(request));
  if (find(request.job_id(), user.credentials.uid) != nullptr) {
    return Error(ErrorCode::kInvalidArgument,
                 "there is a job '" + request.job_id() + "' already",
                 "choose another --name");
  }
  if (auto folder = prepare_log_folder(options_.log_dir, user, options_.changes_user); !folder) {
    return std::move(folder).error();
  }

  auto made = std::make_unique<Entry>(context_);
  if (options_.hold.count() > 0) {
    auto shims = prepare_shim_folder(options_.runtime_dir + "/shims", user, options_.changes_user);
    if (!shims) return std::move(shims).error();
    made->record.set_shim_dir(*shims);
  }
  made->record.set_log_dir(options_.log_dir + "/" + std::to_string(user.credentials.uid));
  made->record.set_request_key(key);
  made->record.set_boot_id(boot_id());
  made->record.set_key(record_name(user.credentials.uid, request.job_id()));
  made->record.set_instance(folder_->instance_for(made->record.key()));
  v1::Job& job = made->job();
  job.set_job_id(request.job_id());
  job.set_job_uuid(to_hex(random_bytes(16)));
  job.set_user(user.name);
  job.set_uid(user.credentials.uid);
  job.set_state(v1::JOB_STATE_PENDING);
  job.set_hold_seconds(static_cast<std::uint32_t>(options_.hold.count() / 1000));
  *job.mutable_argv() = request.argv();
  stamp(*job.mutable_started());
  made->accounts.begin(clock_.now());
  made->counters.begin(clock_.now());
  const auto spec = make_spec(request, user, made->record);
  if (!spec) return spec.error();
  *made->record.mutable_spec() = std::move(request);
  made->record.mutable_spec()->clear_env();
  if (auto launched = launch(*made, *spec, user); !launched) return std::move(launched).error();

  Entry& kept = *entries_.emplace_back(std::move(made));
  if (!key.empty()) by_request_[key] = &kept;
  forget_oldest();
  on_change_(kept.job());
  return &kept.job();
}

// On the disk first: what a client was told, the next agent knows too.
void JobRunner::changed(Entry& entry) {
  write_record(entry);
  on_change_(entry.job());
}

void JobRunner::write_record(Entry& entry) {
  *entry.record.mutable_accounts() = to_record(entry.accounts);
  const auto written = folder_->write(entry.record);
  if (written) {
    entry.is_record_lost = false;
  } else if (!std::exchange(entry.is_record_lost, true)) {
    log("job " + entry.job().job_id() + ": " + written.error().message() +
        "; an agent that is started now does not know how it stands");
  }
}

// Steps come with snapshots alone; without them all of a generation would count as its start.
void JobRunner::look_for_steps() {
  is_looking_ = false;
  for (const auto& entry : entries_) {
    if (!entry->shim || !entry->accounts.wants_snapshots()) continue;
    is_looking_ = true;
    ++entry->num_looks;
    entry->shim.request(supervisor::TakeSnapshot{});
  }
  if (!is_looking_) return;
  look_.expires_after(kFirstStepLook);
  look_.async_wait([this](const boost::system::error_code& error) {
    if (!error) look_for_steps();
  });
}

// One that has not answered yet is not asked again: it may be stopped.
void JobRunner::look_at(Entry& entry) {
  if (!entry.shim || entry.num_looks > 0) return;
  ++entry.num_looks;
  entry.shim.request(supervisor::TakeSnapshot{});
}

void JobRunner::look_at(const v1::Job& job) {
  if (Entry* const found = entry(job.job_uuid())) look_at(*found);
}

void JobRunner::look(std::function<void()> done) {
  for (const auto& entry : entries_) look_at(*entry);
  looks_.push_back(std::move(done));
  tell_looks();
}

void JobRunner::tell_looks() {
  const bool is_awaited = std::any_of(entries_.begin(), entries_.end(), [](const auto& entry) {
    return entry->shim && entry->num_looks > 0;
  });
  if (is_awaited) return;
  for (const auto& done : std::exchange(looks_, {})) done();
}

// Ends of workers and notices change the record in memory alone: a thousand workers end together, and the next agent
// hears of them from the shim.
void JobRunner::on_event(Entry& entry, const supervisor::HostEvent& event) {
  v1::Job& job = entry.job();
  const bool is_other_account = entry.accounts.hear(event, clock_.now());
  if (options_.on_heard) options_.on_heard(job, event);
  entry.timeline.hear(event, seconds_since_1970(), job.workers_size());
  if (options_.totals != nullptr) entry.counters.hear(event, clock_.now(), *options_.totals);
  if (entry.accounts.wants_snapshots() && !is_looking_) look_for_steps();
  if (const auto* started = std::get_if<supervisor::GenerationStarted>(&event)) {
    show_started(job, *started, entry.record.asked_to_stop());
    return changed(entry);
  }
  if (const auto* snapshot = std::get_if<supervisor::Snapshot>(&event)) {
    if (entry.num_looks > 0) {
      --entry.num_looks;
      if (is_other_account) write_record(entry);
      if (!looks_.empty()) tell_looks();
      return;
    }
    if (std::exchange(entry.may_owe_stop, false) && !snapshot->is_stop_asked) order_stop(entry);
    show_standing(job, *snapshot, entry.record.asked_to_stop());
    write_record(entry);
  } else if (const auto* exit = std::get_if<supervisor::WorkerExit>(&event)) {
    show_exit(job, *exit);
  } else if (const auto* notice = std::get_if<supervisor::Notice>(&event)) {
    add_to_report(job, notice->text);
  } else if (const auto* outcome = std::get_if<supervisor::JobOutcome>(&event)) {
    return end(entry, *outcome);
  } else if (!std::holds_alternative<supervisor::Restarting>(event)) {
    return;
  }
  on_change_(job);
}

void JobRunner::end(Entry& entry, const supervisor::JobOutcome& outcome) {
  show_outcome(entry.job(), outcome, entry.record.asked_to_stop());
  conclude(entry);
}

void JobRunner::end(Entry& entry, const Error& error) {
  show_loss(entry.job(), error);
  conclude(entry);
}

void JobRunner::conclude(Entry& entry) {
  entry.shim.close();
  entry.accounts.close(clock_.now());
  stamp(*entry.job().mutable_ended());
  write_record(entry);
  // Ours says it now. One that could not be written keeps the shim's word, for the next agent.
  if (!entry.record.shim_dir().empty() && !entry.is_record_lost)
    supervisor::remove_last_word(entry.record.shim_dir(), entry.job().job_id());
  on_change_(entry.job());
  if (!looks_.empty()) tell_looks();
}

JobRunner::Entry* JobRunner::entry(const std::string& uuid) {
  const auto found = std::find_if(entries_.begin(), entries_.end(), [&](const auto& entry) {
    return entry->job().job_uuid() == uuid;
  });
  return found == entries_.end() ? nullptr : found->get();
}

const JobRunner::Entry* JobRunner::entry(const std::string& uuid) const {
  return const_cast<JobRunner*>(this)->entry(uuid);
}

const v1::Job* JobRunner::find(const std::string& uuid) const {
  const Entry* found = entry(uuid);
  return found == nullptr ? nullptr : &found->job();
}

const v1::Job* JobRunner::find(const std::string& job_id, uid_t user) const {
  for (const auto& entry : entries_) {
    if (entry->job().job_id() == job_id && entry->job().uid() == user) return &entry->job();
  }
  return nullptr;
}

std::vector<const v1::Job*> JobRunner::all() const {
  std::vector<const v1::Job*> jobs;
  for (const auto& entry : entries_) jobs.push_back(&entry->job());
  return jobs;
}

supervisor::LedgerState JobRunner::ledger_of(const v1::Job& job) const {
  const Entry* found = entry(job.job_uuid());
  return found == nullptr ? supervisor::LedgerState()
                          : settled(found->accounts.ledger(), SteadyClock().now());
}

const supervisor::JobCounters& JobRunner::counters_of(const v1::Job& job) const {
  static const supervisor::JobCounters none;
  const Entry* found = entry(job.job_uuid());
  return found == nullptr ? none : found->counters;
}

const supervisor::JobTimeline& JobRunner::timeline_of(const v1::Job& job) const {
  static const supervisor::JobTimeline none;
  const Entry* found = entry(job.job_uuid());
  return found == nullptr ? none : found->timeline;
}

std::string JobRunner::log_folder_of(const v1::Job& job) const {
  const Entry* found = entry(job.job_uuid());
  return found == nullptr ? "" : found->record.log_dir();
}

std::string JobRunner::tracking_dir_of(const v1::Job& job) const {
  const Entry* found = entry(job.job_uuid());
  return found == nullptr ? "" : found->record.spec().tracking_dir();
}

int JobRunner::num_ranks_of(const v1::Job& job) const {
  const Entry* found = entry(job.job_uuid());
  return found == nullptr ? 1 : num_ranks(*found);
}

int JobRunner::num_ranks(const Entry& entry) {
  const int asked = static_cast<int>(entry.record.spec().procs_per_node());
  return std::max({1, asked, entry.job().workers_size()});
}

// Nobody knows what a job whose record was damaged had asked for.
int JobRunner::most_ranks(const Entry& entry) {
  return entry.record.has_spec() ? num_ranks(entry) : kMaxLocalWorkers;
}

void JobRunner::stop(const std::string& uuid, const supervisor::Stop& stop) {
  Entry* found = entry(uuid);
  if (found == nullptr || has_ended(found->job())) return;
  v1::JobRecord& record = found->record;
  const bool was_stopping = found->job().state() == v1::JOB_STATE_STOPPING;
  if (!note_stop(stop, record)) return;  // it is being killed
  found->accounts.ask_to_stop(clock_.now());
  found->counters.ask_to_stop(clock_.now());
  found->job().set_state(v1::JOB_STATE_STOPPING);
  write_record(*found);
  if (found->shim) {
    order_stop(*found);
  } else {
    found->has_unsent_stop = true;
    if (record.stop().kill()) adopter_.hurry(found->job().job_id(), record.instance());
  }
  if (!was_stopping) on_change_(found->job());
}

bool JobRunner::is_asked_to_stop(const v1::Job& job) const {
  const Entry* found = entry(job.job_uuid());
  return found != nullptr && !has_ended(found->job()) && found->record.asked_to_stop();
}

void JobRunner::order_stop(Entry& entry) {
  entry.shim.request(stop_of(entry.record));
  limit_stop(entry);
}

// A shim that is stopped, or not ours any more, does not do it: it is killed then.
void JobRunner::limit_stop(Entry& entry) {
  const auto policy = stop_policy_of(entry.record.spec());
  const supervisor::Stop stop = stop_of(entry.record);
  const bool has_own_grace = stop.grace >= supervisor::Milliseconds(0);
  entry.shim.must_act_within(stop_limit(policy,
                                        stop.mode == StopMode::kKill ? supervisor::Milliseconds(0)
                                        : has_own_grace              ? stop.grace
                                                                     : policy.grace));
}

void JobRunner::stop_all(StopMode mode) {
  for (const auto& entry : entries_) {
    if (has_ended(entry->job())) continue;
    if (mode == StopMode::kKill || !entry->record.asked_to_stop())
      stop(entry->job().job_uuid(), {.mode = mode, .signal = SIGTERM});
  }
}

void JobRunner::dump_stacks(const std::string& uuid) {
  Entry* found = entry(uuid);
  if (found != nullptr && found->shim) found->shim.request(supervisor::DumpStacks{});
}

Result<void> JobRunner::signal(const std::string& uuid, int signal) {
  Entry* found = entry(uuid);
  if (found == nullptr) return Error(ErrorCode::kJobUnknown, "there is no job '" + uuid + "'");
  if (signal < 1 || signal >= NSIG) {
    return Error(ErrorCode::kInvalidArgument,
                 "signal " + std::to_string(signal) + " does not exist");
  }
  std::vector<std::int64_t> pids;
  for (const v1::Worker& worker : found->job().workers()) pids.push_back(worker.pid());
  signal_workers(pids, found->job().uid(), signal);
  return {};
}

int JobRunner::num_running() const {
  return static_cast<int>(std::count_if(entries_.begin(), entries_.end(), [](const auto& entry) {
    return !has_ended(entry->job());
  }));
}

int JobRunner::slots_taken() const {
  int taken = 0;
  for (const auto& entry : entries_) {
    if (!has_ended(entry->job())) taken += num_ranks(*entry);
  }
  return taken;
}

bool JobRunner::holds_all() const {
  return std::all_of(entries_.begin(), entries_.end(), [](const auto& entry) {
    return has_ended(entry->job()) || !entry->record.shim_dir().empty();
  });
}

void JobRunner::log(const std::string& line) const {
  if (options_.log) options_.log(line);
}

void JobRunner::forget_oldest() {
  std::vector<decltype(entries_)::iterator> ended;
  std::vector<std::string> owners;
  for (auto entry = entries_.begin(); entry != entries_.end(); ++entry) {
    if (!has_ended((*entry)->job())) continue;
    ended.push_back(entry);
    owners.push_back(caller_of((*entry)->job().uid()));
  }
  for (const std::size_t index : surplus_of(owners, options_.keep_finished)) {
    const Entry& entry = **ended[index];
    by_request_.erase(entry.record.request_key());
    folder_->remove(record_name(entry.record));
    entries_.erase(ended[index]);
  }
}

}  // namespace accel::agent
