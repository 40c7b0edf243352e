// CheckpointWriter: makes a checkpoint folder appear, whole, on all ranks or on none.
//
// Threads:  the thread that trains; every rank makes the same calls.
#pragma once

#include <accel/checkpoint.h>

#include "libaccel/checkpoint/file_system.h"
#include "libaccel/checkpoint/rank_exchange.h"

namespace accel::checkpoint {

enum class Existing {
  kReplace,  // a checkpoint of that name gives way; anything else is kCheckpointExists
  kRefuse,   // whatever has that name is kCheckpointExists
};

// Errors  as save_checkpoint().
CheckpointInfo write_checkpoint(FileSystem& file_system,
                                RankExchange& ranks,
                                const std::filesystem::path& folder,
                                const CheckpointObjects& objects,
                                const SaveOptions& options,
                                Existing existing);

// The rank that makes the folder for this one: 0, or the first of the node.
[[nodiscard]] int leader_of(const RankExchange& ranks, bool save_on_each_node);

}  // namespace accel::checkpoint
