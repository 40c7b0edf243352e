// RankList: local ranks as a user lists them.
//
// Threads:  pure functions.
#pragma once

#include <set>
#include <string_view>

#include <accel/result.h>

namespace accel::launcher {

// "0,1"; `flag` is what errors call it: "--local_ranks_filter". Errors  kInvalidArgument, for a rank that
// is not below `num_workers` too.
[[nodiscard]] Result<std::set<int>> parse_rank_list(std::string_view flag,
                                                    std::string_view text,
                                                    int num_workers);

}  // namespace accel::launcher
