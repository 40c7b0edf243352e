#include "launcher/torchrun/rank_list.h"

#include <algorithm>
#include <charconv>
#include <string>

namespace accel::launcher {

Result<std::set<int>> parse_rank_list(std::string_view flag,
                                      std::string_view text,
                                      int num_workers) {
  std::set<int> ranks;
  std::string_view rest = text;
  while (true) {
    const size_t comma = std::min(rest.find(','), rest.size());
    const std::string_view word = rest.substr(0, comma);
    int rank = -1;
    const auto [end, failure] = std::from_chars(word.data(), word.data() + word.size(), rank);
    const bool is_number = failure == std::errc() && end == word.data() + word.size();
    if (!is_number || rank < 0 || rank >= num_workers) {
      return Error(ErrorCode::kInvalidArgument,
                   "--" + std::string(flag) + " is '" + std::string(text) +
                       "', expected local ranks below " + std::to_string(num_workers) +
                       ", as in 0,1",
                   "give --" + std::string(flag) + " 0");
    }
    ranks.insert(rank);
    if (comma == rest.size()) return ranks;
    rest.remove_prefix(comma + 1);
  }
}

}  // namespace accel::launcher
