#include "agent/main/agent_dashboard.h"

#include <algorithm>
#include <optional>

#include "agent/cluster/job_view.h"
#include "agent/jobs/job_state.h"
#include "agent/logs/log_reader.h"
#include "agent/main/agent_metrics.h"

namespace accel::agent {
namespace {

using supervisor::DashboardJob;
using supervisor::DashboardRank;
using supervisor::DashboardState;
using supervisor::JobCounters;
using supervisor::LogQuestion;
using supervisor::LogTail;

DashboardRank rank_of(const Member& member, int local_rank, TimePoint now) {
  const auto index = static_cast<std::size_t>(local_rank);
  DashboardRank rank = {
      .rank = member.first_rank + local_rank, .local_rank = local_rank, .node = member.node_id};
  if (member.finished_ranks.contains(local_rank)) rank.end = "ok";
  if (index >= member.steps.size() || member.steps[index].step < 0) return rank;
  rank.reports = true;
  rank.step = static_cast<std::uint64_t>(member.steps[index].step);
  rank.silent_seconds = supervisor::seconds_of(now - member.steps[index].reported_at);
  return rank;
}

void add_sights(DashboardJob& job, int first_rank, const JobCounters& counters, TimePoint now) {
  for (const JobCounters::Sight& sight : counters.sights()) {
    const auto found = std::find_if(job.ranks.begin(), job.ranks.end(), [&](const auto& rank) {
      return rank.rank == first_rank + sight.local_rank;
    });
    if (found != job.ranks.end()) add_sight(*found, sight, now);
  }
}

DashboardJob shown_job(const v1::Job& job, const std::string& node) {
  DashboardJob shown = {.id = job.job_id(),
                        .uuid = job.job_uuid(),
                        .user = job.user(),
                        .state = job_state_word(job.state()),
                        .reason = job.reason(),
                        .generation = job.generation(),
                        .restarts = job.restarts()};
  for (const v1::Worker& worker : job.workers()) {
    DashboardRank rank = {.rank = static_cast<int>(worker.rank()),
                          .local_rank = static_cast<int>(worker.local_rank()),
                          .node = node,
                          .pid = worker.pid()};
    if (worker.has_exit()) {
      const std::string cause = v1::ExitInfo::Cause_Name(worker.exit().cause());
      rank.end = lowercase(cause.substr(std::min(cause.size(), sizeof "CAUSE_" - 1)));
    }
    shown.ranks.push_back(std::move(rank));
  }
  return shown;
}

// The part's job as the coordinator has it here; else a job of which no more is known.
DashboardJob& job_of_part(DashboardState& shown, const NodeJobs::Part& part) {
  const auto found = std::find_if(shown.jobs.begin(), shown.jobs.end(), [&](const auto& job) {
    return job.uuid == part.spec.job_uuid();
  });
  if (found != shown.jobs.end()) return *found;
  shown.jobs.push_back({.id = part.spec.job_id(),
                        .uuid = part.spec.job_uuid(),
                        .user = part.spec.user(),
                        .state = part.has_ended ? "ended" : "running",
                        .generation = part.generation,
                        .has_ledger = false});
  return shown.jobs.back();
}

DashboardRank& rank_at(DashboardJob& job, int rank, int local_rank, const std::string& node) {
  const auto found = std::find_if(
      job.ranks.begin(), job.ranks.end(), [&](const auto& each) { return each.rank == rank; });
  if (found != job.ranks.end()) return *found;
  job.ranks.push_back({.rank = rank, .local_rank = local_rank, .node = node});
  return job.ranks.back();
}

std::optional<LogReader::Source> source_of(const LogQuestion& question,
                                           const JobRunner& jobs,
                                           const NodeJobs* parts) {
  LogReader::Source source = {.out = question.stream == supervisor::Stream::kOut,
                              .err = question.stream == supervisor::Stream::kErr};
  if (const v1::Job* job = jobs.find(question.job)) {
    if (question.rank >= jobs.num_ranks_of(*job)) return std::nullopt;
    source.folder = jobs.log_folder_of(*job);
    source.job_id = job->job_id();
    source.owner = job->uid();
    source.local_ranks = {question.rank};
    source.first_generation = static_cast<int>(job->generation());
    return source;
  }
  const NodeJobs::Part* part = parts == nullptr ? nullptr : parts->find(question.job);
  if (part == nullptr) return std::nullopt;
  const int local_rank = question.rank - part->first_rank;
  if (local_rank < 0 || local_rank >= part->num_ranks) return std::nullopt;
  source.folder = parts->options().log_dir + "/" + std::to_string(part->user.credentials.uid);
  source.job_id = part->spec.job_id();
  source.owner = part->user.credentials.uid;
  source.local_ranks = {local_rank};
  source.first_generation = static_cast<int>(part->generation);
  return source;
}

}  // namespace

void add_coordinator(DashboardState& shown, const State& state, TimePoint now) {
  for (const auto& [id, node] : state.nodes) {
    shown.nodes.push_back({.id = id,
                           .state = std::string(label_of(node, now)),
                           .endpoint = node.info.endpoint,
                           .slots = static_cast<std::uint64_t>(std::max(0, node.info.slots))});
  }
  for (const auto& [uuid, job] : state.jobs) {
    DashboardJob made = shown_job(head_of(job), "");
    made.ledger = settled(job.ledger, now);
    for (const Member& member : job.members) {
      for (int local_rank = 0; has_seats(job.phase) && local_rank < member.num_ranks; ++local_rank)
        made.ranks.push_back(rank_of(member, local_rank, now));
    }
    shown.jobs.push_back(std::move(made));
  }
}

void add_parts(DashboardState& shown,
               const std::string& node,
               const NodeJobs& parts,
               TimePoint now) {
  for (const auto& part : parts.parts()) {
    DashboardJob& job = job_of_part(shown, *part);
    job.has_logs = true;
    job.has_curves = !part->spec.tracking_dir().empty();
    const auto& events = part->timeline.events();
    job.events.insert(job.events.end(), events.begin(), events.end());
    if (!part->workers || part->generation != job.generation) continue;
    const std::vector<std::int64_t>& pids = part->workers->pids();
    for (std::size_t i = 0; i < pids.size(); ++i) {
      const int local_rank = static_cast<int>(i);
      rank_at(job, part->first_rank + local_rank, local_rank, node).pid = pids[i];
    }
    add_sights(job, part->first_rank, part->counters, now);
  }
}

void add_jobs(DashboardState& shown,
              const std::string& node,
              const JobRunner& jobs,
              TimePoint now) {
  for (const v1::Job* job : jobs.all()) {
    DashboardJob made = shown_job(*job, node);
    made.ledger = jobs.ledger_of(*job);
    made.has_logs = true;
    made.has_curves = !jobs.tracking_dir_of(*job).empty();
    const auto& events = jobs.timeline_of(*job).events();
    made.events.assign(events.begin(), events.end());
    add_sights(made, 0, jobs.counters_of(*job), now);
    shown.jobs.push_back(std::move(made));
  }
}

void read_log(const LogQuestion& question,
              const JobRunner& jobs,
              const NodeJobs* parts,
              DashboardLogs& logs,
              std::function<void(LogTail)> done) {
  auto source = source_of(question, jobs, parts);
  if (!source) return done({.notice = "this rank does not run on this node: ask its own agent"});
  const uid_t owner = source->owner;
  logs.read(
      owner,
      [source = *std::move(source), most = question.bytes] {
        const UniqueFd file = LogReader(source).open_newest();
        return file ? supervisor::log_tail_of(file.get(), most)
                    : LogTail{.notice = "nothing was written yet"};
      },
      std::move(done));
}

TrackingFolder tracking_folder_of(const std::string& job,
                                  const JobRunner& jobs,
                                  const NodeJobs* parts) {
  if (const v1::Job* found = jobs.find(job)) return {found->uid(), jobs.tracking_dir_of(*found)};
  const NodeJobs::Part* part = parts == nullptr ? nullptr : parts->find(job);
  if (part == nullptr) return {};
  return {part->user.credentials.uid, part->spec.tracking_dir()};
}

}  // namespace accel::agent
