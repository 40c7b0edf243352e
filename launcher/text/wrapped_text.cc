#include "launcher/text/wrapped_text.h"

#include <algorithm>

namespace accel::launcher {
namespace {

constexpr std::size_t kColumns = 80;

}  // namespace

std::string wrapped(std::string_view text, std::size_t indent) {
  std::string out;
  std::size_t column = 0;
  while (!text.empty()) {
    const std::size_t end = std::min(text.find(' '), text.size());
    const std::string_view word = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    if (column > 0 && column + 1 + word.size() > kColumns) {
      out += '\n';
      column = 0;
    }
    if (column == 0) {
      out.append(indent, ' ');
      column = indent;
    } else {
      out += ' ';
      ++column;
    }
    out += word;
    column += word.size();
  }
  if (!out.empty()) out += '\n';
  return out;
}

}  // namespace accel::launcher
