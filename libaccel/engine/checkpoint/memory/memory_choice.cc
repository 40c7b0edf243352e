#include "libaccel/engine/checkpoint/memory/memory_choice.h"

#include <algorithm>

namespace accel::checkpoint {
namespace {

// Whether `stamps`, those of `rank`, hold that rank's part of `wanted`.
bool has_part(const std::vector<MemoryStamp>& stamps, MemoryStamp wanted, int rank) {
  wanted.rank = rank;
  return std::find(stamps.begin(), stamps.end(), wanted) != stamps.end();
}

// The first rank without its part; -1: all have theirs.
int first_without(const std::vector<std::vector<MemoryStamp>>& by_rank, const MemoryStamp& wanted) {
  for (std::size_t rank = 0; rank < by_rank.size(); ++rank) {
    if (!has_part(by_rank[rank], wanted, static_cast<int>(rank))) return static_cast<int>(rank);
  }
  return -1;
}

std::string stamp_text(const MemoryStamp& stamp) {
  return "step " + std::to_string(stamp.step) + " of generation " +
         std::to_string(stamp.generation);
}

}  // namespace

MemoryChoice choose_memory_checkpoint(const std::vector<std::vector<MemoryStamp>>& by_rank) {
  std::vector<MemoryStamp> all;
  for (const auto& stamps : by_rank) all.insert(all.end(), stamps.begin(), stamps.end());
  if (all.empty()) return {.stamp = {}, .why_not = "no rank has one"};
  std::sort(all.begin(), all.end(), [](const MemoryStamp& a, const MemoryStamp& b) {
    return a.serial > b.serial;
  });
  const auto world_size = static_cast<int>(by_rank.size());
  for (MemoryStamp candidate : all) {
    candidate.rank = 0;
    if (candidate.world_size == world_size && first_without(by_rank, candidate) < 0)
      return {.stamp = candidate, .why_not = {}};
  }
  const MemoryStamp& newest = all.front();
  if (newest.world_size != world_size) {
    return {.stamp = {},
            .why_not = "that of " + stamp_text(newest) + " was saved by " +
                       std::to_string(newest.world_size) + " ranks, now there are " +
                       std::to_string(world_size)};
  }
  return {.stamp = {},
          .why_not = "rank " + std::to_string(first_without(by_rank, newest)) +
                     " has no part of that of " + stamp_text(newest)};
}

}  // namespace accel::checkpoint
