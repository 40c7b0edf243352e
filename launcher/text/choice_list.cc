#include "launcher/text/choice_list.h"

#include <algorithm>

#include "runtime/text/joined.h"
#include "runtime/text/letter_case.h"

namespace accel::launcher {
std::vector<std::string_view> split_choices(std::string_view choices) {
  std::vector<std::string_view> result;
  while (!choices.empty()) {
    const size_t comma = std::min(choices.find(','), choices.size());
    result.push_back(choices.substr(0, comma));
    choices.remove_prefix(std::min(comma + 1, choices.size()));
  }
  return result;
}

std::string listed_choices(std::string_view choices) {
  return joined(split_choices(choices), ", ");
}

std::optional<std::string_view> find_choice(std::string_view choices, std::string_view text) {
  for (const std::string_view choice : split_choices(choices)) {
    if (is_equal_but_for_case(choice, text)) return choice;
  }
  return std::nullopt;
}

}  // namespace accel::launcher
