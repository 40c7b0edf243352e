// RecordText: the coordinator's records as text, and back.
//
// Times are kept as what is left or what is past, because a monotonic clock means nothing on another
// machine or after a reboot.
//
// Threads:  pure functions.
#pragma once

#include <cstdint>
#include <string_view>

#include "agent/coordinator/messages/records.h"
#include "agent/coordinator/state/state.h"

namespace accel::agent {

[[nodiscard]] Record epoch_record(std::uint64_t epoch);
// As it will be: a commit under way as running, an end under way as that end.
[[nodiscard]] Record job_record(const Job& job, const State& state, TimePoint now);
[[nodiscard]] Record node_record(const Node& node, TimePoint now);
[[nodiscard]] Record forgotten_job(const JobUuid& uuid);

enum class RecordKind { kEpoch, kJob, kNode, kOther };
[[nodiscard]] RecordKind kind_of(const Record& record);

struct RecordedMember {
  NodeInfo node;  // id, boot, host, first address
  int first_rank = 0;
  int num_ranks = 1;
};

// Errors  kProtocol for what the functions above do not write, naming the field.
[[nodiscard]] Result<std::uint64_t> read_epoch(const Record& record);
// Fills what is recorded; `members` beside it, because they are nodes too.
[[nodiscard]] Result<std::pair<Job, std::vector<RecordedMember>>> read_job(const Record& record);
[[nodiscard]] Result<Node> read_node(const Record& record, TimePoint now);

}  // namespace accel::agent
