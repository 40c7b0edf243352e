// GATHERING and SUSPENDED: who takes part in the next generation, and when to begin.
//
// A round begins with a complete world at once: max_nodes, all expected hosts, or as many as before.
// Otherwise min_nodes are enough once the last call is over. It never begins while somebody who would
// be wanted is undecided: a node that is suspect either comes back or is lost within seconds, and
// beginning without it would cost a second change of generation.

#include <algorithm>
#include <set>

#include "agent/coordinator/decisions/placement.h"
#include "agent/coordinator/decisions/turn.h"
#include "runtime/text/counted.h"

namespace accel::agent {
namespace {

struct Round {
  std::vector<Candidate> candidates;
  std::size_t num_undecided = 0;  // had a seat, and are suspect or not yet stopped
};

Round look_around(const Turn& turn, const Job& job) {
  Round round;
  std::vector<std::pair<std::uint64_t, Candidate>> found;
  for (const auto& [id, joined] : job.joined) {
    const auto node = turn.state.nodes.find(id);
    if (node == turn.state.nodes.end() || joined.is_forgotten || job.declined.count(id)) continue;
    const bool is_idle = node->second.busy.count(uuid_of(job)) == 0;
    if (!has_room(turn.state, job, node->second)) continue;
    if (is_idle && is_eligible(turn.state, id, turn.now)) {
      found.push_back(
          {joined.order,
           {id, joined.slots, joined.previous_index, joined.preferred_index, joined.spare}});
      continue;
    }
    const bool may_come = !node->second.is_drained && !is_quarantined(node->second, turn.now) &&
                          node->second.liveness != Liveness::kLost;
    if (may_come && joined.previous_index >= 0) ++round.num_undecided;
  }
  std::sort(
      found.begin(), found.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
  for (auto& [order, candidate] : found) round.candidates.push_back(std::move(candidate));
  return round;
}

// Expected hosts that have not joined; by host name or node id.
std::vector<std::string> missing_hosts(const State& state, const Job& job) {
  std::set<std::string> present;
  for (const auto& [id, joined] : job.joined) {
    present.insert(id);
    const auto node = state.nodes.find(id);
    if (node != state.nodes.end()) present.insert(node->second.info.hostname);
  }
  std::vector<std::string> missing;
  for (const std::string& host : job.description->expected_hosts) {
    if (!present.count(host)) missing.push_back(host);
  }
  return missing;
}

// "3 of 4 nodes joined; missing: gpu-04".
std::string missing_text(const State& state, const Job& job) {
  const JobDescription& wanted = *job.description;
  const auto num_joined =
      std::count_if(job.joined.begin(), job.joined.end(), [&](const auto& joined) {
        return !job.declined.count(joined.first);
      });
  std::string text =
      std::to_string(num_joined) + " of " + counted(wanted.min_nodes, "node") + " joined";
  const auto missing = missing_hosts(state, job);
  constexpr std::size_t kMostNamed = 32;
  constexpr std::size_t kMostDeclined = 4;
  for (std::size_t i = 0; i < std::min(missing.size(), kMostNamed); ++i) {
    text += (i == 0 ? "; missing: " : ", ") + missing[i];
  }
  if (missing.size() > kMostNamed) {
    text += " and " + std::to_string(missing.size() - kMostNamed) + " more";
  }
  std::size_t num_named = 0;
  for (const auto& [id, reason] : job.declined) {
    if (num_named++ == kMostDeclined) break;
    text += "; " + id + " does not take part: " + reason;
  }
  return text;
}

PlacementLimits limits_of(const Job& job) {
  return {job.description->min_nodes, job.description->max_nodes, job.previous_nodes};
}

bool is_complete(const Turn& turn, const Job& job, std::size_t seated) {
  const JobDescription& wanted = *job.description;
  if (seated >= static_cast<std::size_t>(wanted.max_nodes)) return true;
  if (job.previous_nodes > 0 && seated >= static_cast<std::size_t>(job.previous_nodes)) return true;
  if (!wanted.expected_hosts.empty() && job.previous_nodes == 0 &&
      missing_hosts(turn.state, job).empty()) {
    return true;
  }
  return job.min_since && turn.now >= *job.min_since + wanted.last_call;
}

void try_form(Turn& turn, Job& job) {
  Round round = look_around(turn, job);
  const auto reachable = round.candidates.size() + round.num_undecided;
  if (reachable < static_cast<std::size_t>(job.description->min_nodes)) {
    job.min_since.reset();
    if (job.was_started && job.phase == JobPhase::kGathering) {
      enter(turn, job, JobPhase::kSuspended, missing_text(turn.state, job));
    }
    open_account(job.ledger, Account::kWaiting, turn.now);
    return;
  }
  if (job.phase == JobPhase::kSuspended) {
    enter(turn, job, JobPhase::kGathering, "enough nodes are there again");
  }
  auto seats = place(std::move(round.candidates), limits_of(job));
  if (seats.empty() || round.num_undecided > 0) return;
  if (!job.min_since) {
    job.min_since = turn.now;
    open_account(job.ledger, Account::kRendezvous, turn.now);
  }
  if (turn.now < job.gather_not_before || !is_complete(turn, job, seats.size())) return;
  prepare(turn, job, std::move(seats));
}

bool may_still_come(const Turn& turn, const Job& job, const NodeId& id, const Node& node) {
  const bool is_asked_or_there = job.description->recruits ? !node.has_left : job.joined.count(id);
  return is_asked_or_there && !job.declined.count(id) && !node.is_drained &&
         !is_quarantined(node, turn.now) && node.liveness != Liveness::kLost;
}

// Whether one more node can change anything before the next Tick: spares a look at everybody for each
// of ten thousand Joins.
bool is_worth_a_look(const Job& job) {
  const auto joined = job.joined.size();
  const JobDescription& wanted = *job.description;
  if (joined < static_cast<std::size_t>(wanted.min_nodes)) return false;
  if (joined >= static_cast<std::size_t>(wanted.max_nodes) || !job.min_since) return true;
  return !wanted.expected_hosts.empty() && joined >= wanted.expected_hosts.size();
}

}  // namespace

bool can_be_formed(const Turn& turn, const Job& job) {
  const JobDescription& wanted = *job.description;
  const bool may_others_join =
      !wanted.recruits && job.joined.size() < static_cast<std::size_t>(wanted.max_nodes);
  const auto num_left =
      std::count_if(turn.state.nodes.begin(), turn.state.nodes.end(), [&](const auto& entry) {
        return may_still_come(turn, job, entry.first, entry.second);
      });
  return may_others_join || num_left >= wanted.min_nodes;
}

void begin_gathering(Turn& turn, Job& job, const std::string& text) {
  job.min_since.reset();
  job.parked_since.reset();
  enter(turn, job, JobPhase::kGathering, text);
  open_account(job.ledger, Account::kWaiting, turn.now);
  recruit(turn, job);
  try_form(turn, job);
}

void add_joined(Turn& turn, Job& job, Node& node, const Join& join) {
  const auto [entry, is_new] = job.joined.try_emplace(node.info.node_id);
  Joined& joined = entry->second;
  if (is_new) {
    joined.order = job.next_order++;
    job.declined.erase(node.info.node_id);
  }
  job.invited.erase(node.info.node_id);
  joined.is_forgotten = false;
  joined.spare = join.spare;
  joined.slots = join.slots > 0 ? join.slots : job.description->procs_per_node;
  joined.preferred_index = join.preferred_index;
  note_generation(job, join.generation);
  // No generation has been formed here: the job may have had some with a coordinator that left no record.
  if (job.generation == 0) {
    job.history.restarts = std::max(job.history.restarts, join.restarts);
    job.history.out_of_memory = std::max(job.history.out_of_memory, join.out_of_memory);
  }
  if (is_over(job)) return;
  if (job.phase == JobPhase::kGathering || job.phase == JobPhase::kSuspended) {
    if (is_worth_a_look(job)) try_form(turn, job);
    return;
  }
  if (job.phase == JobPhase::kPending || find_member(job, node.info.node_id)) return;
  const bool may_grow = job.is_growing || job.description->scale_up == ScaleUp::kAuto;
  if (!join.spare && may_grow && !job.parked_since) job.parked_since = turn.now;
  send(turn,
       node,
       job.generation,
       Notice{uuid_of(job),
              NoticeKind::kParked,
              "generation " + std::to_string(job.generation) +
                  " runs; this node takes part from the next restart, or after `accel scale`"});
}

void tick_gathering(Turn& turn, Job& job) {
  if (is_over(job)) return;
  const JobDescription& wanted = *job.description;
  recruit(turn, job);
  try_form(turn, job);
  if (job.phase != JobPhase::kGathering && job.phase != JobPhase::kSuspended) return;
  const Duration waited = turn.now - job.phase_since;
  if (!job.was_started) {
    if (waited >= wanted.join_limit) {
      const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(wanted.join_limit);
      return finish(
          turn,
          job,
          JobPhase::kFailed,
          missing_text(turn.state, job) + " within " + std::to_string(seconds.count()) + " s");
    }
    if (!job.missing_named && !job.min_since && waited >= turn.state.config.name_missing_after) {
      job.missing_named = true;
      job.text = missing_text(turn.state, job);
      report(turn, ReportKind::kNodesMissing, uuid_of(job), "", job.text);
    }
    return;
  }
  if (job.phase == JobPhase::kSuspended && waited >= wanted.restart.regroup_timeout) {
    const auto seconds =
        std::chrono::duration_cast<std::chrono::seconds>(wanted.restart.regroup_timeout);
    finish(turn,
           job,
           JobPhase::kFailed,
           "too few nodes for " + std::to_string(seconds.count()) +
               " s: " + missing_text(turn.state, job));
  }
}

}  // namespace accel::agent
