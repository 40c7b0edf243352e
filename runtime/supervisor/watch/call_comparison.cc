#include "runtime/supervisor/watch/call_comparison.h"

#include <algorithm>
#include <cstdint>
#include <map>

namespace accel::supervisor {
namespace {

std::string called(const RankCalls& rank) {
  return rank.text.empty() ? "another call" : rank.text;
}

std::string rank_word(const RankCalls& rank) {
  return "rank " + std::to_string(rank.global_rank);
}

// Requires: the hash up to call number `call` is known.
std::uint64_t hash_at(const RankCalls& rank, std::uint64_t call) {
  return rank.hashes[static_cast<std::size_t>(rank.number - call)];
}

// The hash that most ranks have; of several the first rank's.
std::uint64_t usual_hash(const std::vector<RankCalls>& ranks, std::uint64_t call) {
  std::map<std::uint64_t, int> counts;
  for (const RankCalls& rank : ranks) ++counts[hash_at(rank, call)];
  std::uint64_t usual = hash_at(ranks.front(), call);
  for (const auto& [hash, count] : counts)
    if (count > counts.at(usual)) usual = hash;
  return usual;
}

std::string difference_at(const std::vector<RankCalls>& ranks,
                          const RankCalls& other,
                          std::uint64_t call,
                          bool is_oldest) {
  const std::uint64_t usual = usual_hash(ranks, call);
  const auto reference = std::ranges::find_if(
      ranks, [&](const RankCalls& rank) { return hash_at(rank, call) == usual; });
  std::string text = rank_word(other) + " differs from the others at collective call " +
                     std::to_string(call) + (is_oldest && call > 1 ? " or before it" : "");
  if (other.number == call) {
    text += ": " + called(other);
    if (reference->number == call)
      text += " in place of " + called(*reference) + " of " + rank_word(*reference);
  } else if (reference->number == call) {
    text += ": " + rank_word(*reference) + " called " + called(*reference);
  }
  return text;
}

}  // namespace

std::optional<std::string> call_difference(const std::vector<RankCalls>& ranks) {
  if (ranks.size() < 2) return std::nullopt;
  std::uint64_t oldest = 1;
  for (const RankCalls& rank : ranks) {
    if (rank.hashes.empty() || rank.hashes.size() > rank.number) return std::nullopt;
    oldest = std::max(oldest, rank.number - rank.hashes.size() + 1);
  }
  const auto [fewest, most] = std::ranges::minmax_element(ranks, {}, &RankCalls::number);
  for (std::uint64_t call = oldest; call <= fewest->number; ++call) {
    const std::uint64_t usual = usual_hash(ranks, call);
    const auto other = std::ranges::find_if(
        ranks, [&](const RankCalls& rank) { return hash_at(rank, call) != usual; });
    if (other != ranks.end()) return difference_at(ranks, *other, call, call == oldest);
  }
  if (fewest->number == most->number) return std::nullopt;
  return rank_word(*fewest) + " has begun " + std::to_string(fewest->number) +
         " collective calls, the last one " + called(*fewest) + "; " + rank_word(*most) +
         " is in call " + std::to_string(most->number) + ", " + called(*most);
}

}  // namespace accel::supervisor
