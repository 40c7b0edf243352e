// The order of claims, then the seats:
//
//   1. survivors (previous_index >= 0), by that index
//   2. nodes that came to take part, in the order given
//   3. spares, only while the world is smaller than it was (or than min_nodes)
//
// Survivors sit down first, each on its old index; when one of those is beyond the new size (the world
// shrank) all of them move together, in their old order. Newcomers fill what is left. So a rank that
// stays is never moved by a rank that comes.

#include "agent/coordinator/decisions/placement.h"

#include <algorithm>
#include <cstddef>
#include <utility>

namespace accel::agent {
namespace {

enum Claim { kSurvivor, kNewcomer, kSpare };

Claim claim_of(const Candidate& candidate) {
  if (candidate.previous_index >= 0) return kSurvivor;
  return candidate.spare ? kSpare : kNewcomer;
}

// How many of `candidates` (sorted by claim) take part.
std::size_t world_of(const std::vector<Candidate>& candidates, PlacementLimits limits) {
  const auto without_spares = static_cast<std::size_t>(
      std::count_if(candidates.begin(), candidates.end(), [](const Candidate& candidate) {
        return claim_of(candidate) != kSpare;
      }));
  const auto wanted = static_cast<std::size_t>(std::max(limits.min_nodes, limits.previous_nodes));
  const auto most = static_cast<std::size_t>(limits.max_nodes);
  return std::min(most, std::max(without_spares, std::min(wanted, candidates.size())));
}

}  // namespace

std::vector<Seat> place(std::vector<Candidate> candidates, PlacementLimits limits) {
  std::stable_sort(
      candidates.begin(), candidates.end(), [](const Candidate& a, const Candidate& b) {
        return std::pair(claim_of(a), a.previous_index) < std::pair(claim_of(b), b.previous_index);
      });
  const std::size_t size = world_of(candidates, limits);
  if (size == 0 || size < static_cast<std::size_t>(limits.min_nodes)) return {};
  candidates.resize(size);

  std::vector<const Candidate*> seated(size, nullptr);
  std::vector<const Candidate*> standing;
  const auto sit = [&](const Candidate& candidate, int index) {
    const bool is_free = index >= 0 && static_cast<std::size_t>(index) < size && !seated[index];
    if (is_free) seated[index] = &candidate;
    return is_free;
  };
  const bool all_fit =
      std::all_of(candidates.begin(), candidates.end(), [&](const auto& candidate) {
        return candidate.previous_index < static_cast<int>(size);
      });
  int next = 0;
  for (const Candidate& candidate : candidates) {
    const bool stays = claim_of(candidate) == kSurvivor &&
                       sit(candidate, all_fit ? candidate.previous_index : next++);
    if (!stays) standing.push_back(&candidate);
  }
  std::erase_if(standing, [&](const Candidate* candidate) {
    return claim_of(*candidate) != kSurvivor && sit(*candidate, candidate->preferred_index);
  });
  std::size_t hole = 0;
  for (const Candidate* candidate : standing) {
    while (seated[hole]) ++hole;
    seated[hole] = candidate;
  }

  std::vector<Seat> seats;
  seats.reserve(size);
  int rank = 0;
  for (std::size_t index = 0; index < size; ++index) {
    seats.push_back({seated[index]->node_id, static_cast<int>(index), rank, seated[index]->slots});
    rank += seated[index]->slots;
  }
  return seats;
}

}  // namespace accel::agent
