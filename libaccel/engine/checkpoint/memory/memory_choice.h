// MemoryChoice: which in-memory checkpoint all ranks can load.
//
// Each rank keeps the last two that it has completed. A save ends when all ranks have completed it, and only then may the
// next one overwrite what came before: so the newest that all have always exists, wherever the job was killed. Not so when
// memory is lost with a node, or when the job goes on with another number of ranks.
//
// Threads:  pure functions.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "libaccel/engine/checkpoint/memory/memory_slot.h"

namespace accel::checkpoint {

struct MemoryChoice {
  std::optional<MemoryStamp> stamp;  // as rank 0 has it
  std::string why_not;               // without one: half a sentence for the log
};

// The newest numbered checkpoint of a project's folder.
struct DiskMark {
  std::int64_t number = -1;  // none
  std::int64_t generation = 0;

  // A number that was under way when ranks crashed is used again, by a later generation.
  [[nodiscard]] bool is_newer_than(const DiskMark& other) const noexcept {
    return number > other.number || (number == other.number && generation > other.generation);
  }
};

// by_rank: what each rank has complete, in any order.
[[nodiscard]] MemoryChoice choose_memory_checkpoint(
    const std::vector<std::vector<MemoryStamp>>& by_rank);

}  // namespace accel::checkpoint
