#include "launcher/questionnaire/dialogue.h"

#include <optional>
#include <string>
#include <utility>

#include <accel/error.h>

#include "launcher/flag_table.h"
#include "launcher/questionnaire/questionnaire.h"
#include "launcher/wrapped_text.h"

namespace accel::launcher {
namespace {

constexpr std::size_t kMostBytes = 4096;

void print(std::FILE* out, const std::string& text) {
  std::fputs(text.c_str(), out);
  std::fflush(out);
}

std::string shown(const Questionnaire& questionnaire) {
  const Question& question = *questionnaire.next();
  std::string text = wrapped(questionnaire.text(), 0);
  if (question.kind == AnswerKind::kChoice && !has_number_choices(question)) {
    int index = 0;
    for (const std::string_view choice : split_choices(question.choices))
      text += "  " + std::to_string(index++) + "  " + std::string(choice) + "\n";
  }
  std::string hint = questionnaire.fallback();
  if (question.kind == AnswerKind::kYesNo) hint = hint == "yes" ? "YES/no" : "yes/NO";
  if (has_number_choices(question)) text += "one of " + std::string(question.choices) + " ";
  return text + (hint.empty() ? "> " : "[" + hint + "] > ");
}

// nullopt: the end of the input.
Result<std::optional<std::string>> read_line(std::FILE* in) {
  std::string line;
  int c = std::getc(in);
  if (c == EOF) return std::optional<std::string>();
  for (; c != EOF && c != '\n'; c = std::getc(in)) {
    line += static_cast<char>(c);
    if (line.size() >= kMostBytes)
      return Error(ErrorCode::kUsage, "an answer is longer than 4095 bytes", "answer by lines");
  }
  return std::optional<std::string>(std::move(line));
}

}  // namespace

Result<Answers> hold_dialogue(std::FILE* in, std::FILE* out) {
  Questionnaire questionnaire;
  while (questionnaire.next() != nullptr) {
    print(out, shown(questionnaire));
    auto line = read_line(in);
    if (!line) return std::move(line).error();
    if (!*line)
      return Error(ErrorCode::kUsage,
                   "the answers ended at: " + questionnaire.text(),
                   "answer every question; an empty line takes what stands in brackets");
    const auto taken = questionnaire.answer(**line);
    if (!taken) print(out, "  " + taken.error().message() + "\n");
  }
  return questionnaire.answers();
}

}  // namespace accel::launcher
