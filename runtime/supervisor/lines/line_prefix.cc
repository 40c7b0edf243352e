#include "runtime/supervisor/lines/line_prefix.h"

#include <algorithm>
#include <utility>

namespace accel::supervisor {
namespace {

bool is_name_letter(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
}

// How many letters of `text` are a name as Python's string.Template reads one; 0: none begins here.
size_t name_length(std::string_view text) {
  size_t length = 0;
  while (length < text.size() && (is_name_letter(text[length]) ||
                                  (length > 0 && text[length] >= '0' && text[length] <= '9')))
    ++length;
  return length;
}

struct Word {
  size_t length = 0;  // with '$' and braces; 0: no word
  std::string_view name;
};

// The word that `text`, which begins with '$', begins with: "$rank" or "${rank}".
Word word_of(std::string_view text) {
  const std::string_view rest = text.substr(1);
  if (const size_t length = name_length(rest); length > 0)
    return {.length = 1 + length, .name = rest.substr(0, length)};
  if (!rest.starts_with('{')) return {};
  const size_t length = name_length(rest.substr(1));
  if (length == 0 || length + 1 >= rest.size() || rest[length + 1] != '}') return {};
  return {.length = length + 3, .name = rest.substr(1, length)};
}

}  // namespace

std::string line_prefix(std::string_view prefix_template, const LineOrigin& origin) {
  if (prefix_template.empty()) {
    return "[r" + std::to_string(origin.global_rank) + " " + std::string(origin.stream) + "] ";
  }
  const std::pair<std::string_view, std::string> known[] = {
      {"role_name", origin.role},
      {"local_rank", std::to_string(origin.local_rank)},
      {"rank", std::to_string(origin.global_rank)}};
  std::string out;
  while (!prefix_template.empty()) {
    const size_t plain = std::min(prefix_template.find('$'), prefix_template.size());
    out += prefix_template.substr(0, plain);
    prefix_template.remove_prefix(plain);
    if (prefix_template.empty()) break;
    if (prefix_template.starts_with("$$")) {
      out += '$';
      prefix_template.remove_prefix(2);
      continue;
    }
    const Word word = word_of(prefix_template);
    const auto* const found =
        std::ranges::find(known, word.name, &std::pair<std::string_view, std::string>::first);
    const size_t length = std::max<size_t>(word.length, 1);
    out += found != std::end(known) ? std::string_view(found->second)
                                    : prefix_template.substr(0, length);
    prefix_template.remove_prefix(length);
  }
  return out;
}

}  // namespace accel::supervisor
