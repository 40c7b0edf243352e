#include "libaccel/exporting/value_names.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <string_view>

namespace accel::exporting {
namespace {

constexpr std::array<std::string_view, 35> kWords = {
    "False", "None",     "True",  "and",    "as",   "assert", "async",  "await",    "break",
    "class", "continue", "def",   "del",    "elif", "else",   "except", "finally",  "for",
    "from",  "global",   "if",    "import", "in",   "is",     "lambda", "nonlocal", "not",
    "or",    "pass",     "raise", "return", "try",  "while",  "with",   "yield"};

// Those that operators are called like, too, and what torch.fx itself uses.
constexpr std::array<std::string_view, 26> kBuiltIn = {
    "abs",   "all",   "any",   "bin", "bool",  "bytes",  "complex", "dict", "divmod",
    "float", "hash",  "input", "int", "len",   "list",   "max",     "min",  "pow",
    "range", "round", "self",  "set", "slice", "sorted", "sum",     "torch"};

bool is_letter(char c) {
  return c == '_' ||
         (static_cast<unsigned char>(c) < 128 && std::isalpha(static_cast<unsigned char>(c)) != 0);
}

bool is_digit(char c) {
  return c >= '0' && c <= '9';
}

template <typename Words>
bool is_word_of(const Words& words, const std::string& name) {
  return std::find(words.begin(), words.end(), name) != words.end();
}

std::string spelled(const std::string& wish) {
  std::string name;
  for (const char c : wish) name += is_letter(c) || is_digit(c) ? c : '_';
  if (name.empty() || is_digit(name.front())) name.insert(0, "_");
  return name;
}

}  // namespace

bool is_python_name(const std::string& name) {
  return !name.empty() && name == spelled(name) && !is_word_of(kWords, name);
}

std::string ValueNames::take(const std::string& wish) {
  const std::string base = spelled(wish);
  int& next = next_[base];
  if (next == 0 && (is_word_of(kWords, base) || is_word_of(kBuiltIn, base))) next = 1;
  for (;;) {
    const std::string name = next == 0 ? base : base + "_" + std::to_string(next);
    ++next;
    if (taken_.insert(name).second) return name;
  }
}

}  // namespace accel::exporting
