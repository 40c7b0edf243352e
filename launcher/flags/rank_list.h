// RankList: local ranks as a user lists them.
//
// Threads:  pure functions.
#pragma once

#include <set>
#include <string_view>

#include <accel/result.h>

namespace accel::launcher {

// "0,1", also of workers that are not there: machines have different numbers of them, and share a line. `flag` is what
// errors call it: "--local_ranks_filter". Errors  kInvalidArgument.
[[nodiscard]] Result<std::set<int>> parse_rank_list(std::string_view flag, std::string_view text);

}  // namespace accel::launcher
