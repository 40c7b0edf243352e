#include "launcher/questionnaire/dialogue.h"

#include <optional>
#include <string>

#include <accel/error.h>

#include "launcher/flag_table.h"
#include "launcher/questionnaire/questionnaire.h"
#include "launcher/wrapped_text.h"

namespace accel::launcher {
namespace {

constexpr int kLineBytes = 4096;

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
  char buffer[kLineBytes];
  if (std::fgets(buffer, kLineBytes, in) == nullptr) return std::optional<std::string>();
  std::string line = buffer;
  if (!line.ends_with('\n') && static_cast<int>(line.size()) == kLineBytes - 1)
    return Error(ErrorCode::kUsage, "an answer is longer than 4095 bytes", "answer by lines");
  if (line.ends_with('\n')) line.pop_back();
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
