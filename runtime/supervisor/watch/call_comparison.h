// CallComparison: which rank's collective calls differ from those of the others, and at which call.
//
// Each rank tells the number of its last call, the rolling hashes up to it and to the five before it, and the last call itself
// (accel/channel_layout.h). Looked at are, from the oldest one that is known of all ranks on:
//
//   hashes after call k differ    the ranks that have not the hash of most ranks (of rank 0's, when none has more) called something
//                                 else at k, or, at the oldest, before it
//   numbers differ, hashes do not  the ranks that have begun fewest calls: the others wait for them
//
// Pure. The texts come from workers: they are printable, and may be anything.
// Source:   docs/internals/worker_channel.md; tests/unit/supervisor/call_comparison_test.cc.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include <accel/channel_layout.h>

namespace accel::supervisor {

// "rank 1 differs from the others at collective call 42: all_reduce sum [4] Float in place of barrier of rank 0". std::nullopt when
// all have made the same calls, or fewer than two ranks have told of any.
[[nodiscard]] std::optional<std::string> call_difference(const std::vector<RankCalls>& ranks);

}  // namespace accel::supervisor
