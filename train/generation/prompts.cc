#include "train/generation/prompts.h"

#include <cstddef>
#include <utility>

#include "runtime/printable.h"
#include "runtime/split.h"
#include "runtime/text/number_text.h"
#include "runtime/text/text_file.h"

namespace accel::train {
namespace {

constexpr std::string_view kSeparators = ", \t\r";
constexpr std::size_t kMostPromptBytes = std::size_t{1} << 30;
constexpr std::size_t kMostWordBytes = 40;  // in a message

}  // namespace

Result<std::vector<std::int64_t>> prompt_of(std::string_view text, const std::string& name) {
  std::vector<std::int64_t> tokens;
  for (;;) {
    const std::size_t begin = text.find_first_not_of(kSeparators);
    if (begin == std::string_view::npos) break;
    text.remove_prefix(begin);
    const std::string_view word = text.substr(0, text.find_first_of(kSeparators));
    text.remove_prefix(word.size());
    const auto token = number_of<std::int64_t>(word);
    if (!token || *token < 0) {
      return Error(ErrorCode::kInvalidArgument,
                   name + " has " + printable(word.substr(0, kMostWordBytes)) +
                       (word.size() > kMostWordBytes ? "..." : "") + " in place " +
                       std::to_string(tokens.size() + 1) + ", which is no token id",
                   "write token ids as 1,2,3");
    }
    tokens.push_back(*token);
  }
  if (tokens.empty())
    return Error(ErrorCode::kInvalidArgument,
                 name + " has no tokens",
                 "give it one at least, such as the token that begins a text");
  return tokens;
}

Result<std::vector<std::vector<std::int64_t>>> prompts_of_file(const std::string& path) {
  const auto text =
      read_text_file(path == "-" ? "/dev/stdin" : path, kMostPromptBytes, "the file of prompts");
  if (!text) return text.error();
  std::vector<std::vector<std::int64_t>> prompts;
  std::size_t line = 0;
  for (const std::string_view words : split(*text, '\n')) {
    auto prompt = prompt_of(words, "line " + std::to_string(++line) + " of the prompts");
    if (!prompt) return prompt.error();
    prompts.push_back(std::move(*prompt));
  }
  return prompts;
}

}  // namespace accel::train
