#include "launcher/cluster/agents/rank_choice.h"

#include <algorithm>
#include <iterator>
#include <set>
#include <string>

#include "runtime/text/joined.h"

namespace accel::cluster {
namespace {

std::set<unsigned> ranks_of(const v1::Job& job) {
  std::set<unsigned> ranks;
  for (const v1::Worker& worker : job.workers()) ranks.insert(worker.rank());
  for (const v1::JobNode& node : job.nodes()) {
    for (unsigned i = 0; i < std::max(1U, node.count()); ++i) ranks.insert(node.first_rank() + i);
  }
  return ranks;
}

// "0 to 3", or "0, 1 and 4 to 7" where some are missing in between.
std::string ranges(const std::set<unsigned>& ranks) {
  std::vector<std::string> parts;
  for (auto first = ranks.begin(); first != ranks.end();) {
    auto end = std::next(first);
    unsigned last = *first;
    while (end != ranks.end() && *end == last + 1) last = *end++;
    parts.push_back(std::to_string(*first));
    if (last != *first)
      parts.back() += (last == *first + 1 ? " and " : " to ") + std::to_string(last);
    first = end;
  }
  return joined(parts, ", ");
}

}  // namespace

Result<void> check_ranks(const v1::Job& job, const std::vector<unsigned>& asked, bool may_grow) {
  const bool is_elastic = job.max_nodes() > 0;
  const std::set<unsigned> there = ranks_of(job);
  if (there.empty() || (is_elastic && may_grow)) return {};
  const auto missing =
      std::ranges::find_if_not(asked, [&](unsigned rank) { return there.contains(rank); });
  if (missing == asked.end()) return {};
  const std::string ranks = (there.size() == 1 ? "rank " : "ranks ") + ranges(there);
  return Error(
      ErrorCode::kUsage,
      "job " + job.job_id() + " has no rank " + std::to_string(*missing) + ", but " + ranks,
      "give --rank one of these, or leave it out for all");
}

}  // namespace accel::cluster
