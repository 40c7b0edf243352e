#include "launcher/text/shell_word.h"

#include "runtime/text/joined.h"

namespace accel::launcher {

std::string shell_word(std::string_view word) {
  constexpr std::string_view kPlain =
      "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-+=./:,@%";
  if (!word.empty() && word.find_first_not_of(kPlain) == std::string_view::npos) {
    return std::string(word);
  }
  std::string text = "'";
  for (char c : word) {
    if (c == '\'') {
      text += "'\\''";
    } else {
      text += c;
    }
  }
  return text + "'";
}

std::string shell_words(const std::vector<std::string>& words) {
  return joined(words, " ", shell_word);
}

}  // namespace accel::launcher
