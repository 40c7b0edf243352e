#include "runtime/supervisor/line_prefix.h"

#include <utility>

namespace accel::supervisor {

std::string line_prefix(std::string_view prefix_template, const LineOrigin& origin) {
  if (prefix_template.empty()) {
    return "[r" + std::to_string(origin.global_rank) + " " + std::string(origin.stream) + "] ";
  }
  const std::pair<std::string_view, std::string> words[] = {
      {"${role_name}", origin.role},
      {"${local_rank}", std::to_string(origin.local_rank)},
      {"${rank}", std::to_string(origin.global_rank)}};
  std::string out;
  while (!prefix_template.empty()) {
    bool is_word = false;
    for (const auto& [word, value] : words) {
      if (!prefix_template.starts_with(word)) continue;
      out += value;
      prefix_template.remove_prefix(word.size());
      is_word = true;
      break;
    }
    if (is_word) continue;
    out += prefix_template.front();
    prefix_template.remove_prefix(1);
  }
  return out;
}

}  // namespace accel::supervisor
