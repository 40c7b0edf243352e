#include "launcher/flags/rank_list.h"

#include <algorithm>
#include <string>

#include "runtime/text/number_text.h"

namespace accel::launcher {

Result<std::set<int>> parse_rank_list(std::string_view flag, std::string_view text) {
  std::set<int> ranks;
  std::string_view rest = text;
  while (true) {
    const size_t comma = std::min(rest.find(','), rest.size());
    const std::string_view word = rest.substr(0, comma);
    const auto rank = typed_number<int>(word);
    if (!rank) {
      return Error(
          ErrorCode::kInvalidArgument,
          std::string(flag) + " is '" + std::string(text) + "', expected local ranks, as in 0,1",
          "give " + std::string(flag) + " 0");
    }
    ranks.insert(*rank);
    if (comma == rest.size()) return ranks;
    rest.remove_prefix(comma + 1);
  }
}

}  // namespace accel::launcher
