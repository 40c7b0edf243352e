#include "launcher/config/questionnaire/dialogue.h"

#include <algorithm>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include <accel/error.h>

#include "launcher/config/questionnaire/questionnaire.h"
#include "launcher/text/choice_list.h"
#include "launcher/text/wrapped_text.h"
#include "runtime/text/number_text.h"

namespace accel::launcher {
namespace {

constexpr std::size_t kMostLineBytes = 4096;

void print(std::FILE* out, const std::string& text) {
  std::fputs(text.c_str(), out);
  std::fflush(out);
}

std::string shown_by_lines(const Questionnaire& questionnaire) {
  const Question& question = *questionnaire.next();
  std::string text;
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

// A row for each choice. Choices that are numbers are their own numbers.
std::vector<MenuRow> menu_rows(const Question& question) {
  std::vector<MenuRow> rows;
  for (const std::string_view choice : split_choices(question.choices)) {
    const auto place = static_cast<int>(rows.size());
    const bool is_number = has_number_choices(question);
    rows.push_back({is_number ? number_of<int>(choice).value_or(place) : place,
                    is_number ? "" : std::string(choice)});
  }
  return rows;
}

// nullopt: the end of the input.
Result<std::optional<std::string>> read_line(std::FILE* in) {
  std::string line;
  int c = std::getc(in);
  if (c == EOF) return std::optional<std::string>();
  for (; c != EOF && c != '\n'; c = std::getc(in)) {
    line += static_cast<char>(c);
    if (line.size() >= kMostLineBytes)
      return Error(ErrorCode::kUsage, "an answer is longer than 4095 bytes", "answer by lines");
  }
  return std::optional<std::string>(std::move(line));
}

// The row of a choice that an empty line would mean; the first where there is none.
std::size_t fallback_row(const Questionnaire& questionnaire) {
  const auto choices = split_choices(questionnaire.next()->choices);
  const auto found = std::ranges::find(choices, questionnaire.fallback());
  return found == choices.end() ? 0 : static_cast<std::size_t>(found - choices.begin());
}

// What stands for the answer if it were typed; nullopt: the end of the input.
Result<std::optional<std::string>> ask_question(const Questionnaire& questionnaire,
                                                std::FILE* in,
                                                std::FILE* out,
                                                const MenuChooser& choose) {
  const Question& question = *questionnaire.next();
  print(out, wrapped(questionnaire.text(), 0));
  if (choose && question.kind == AnswerKind::kChoice) {
    const MenuOutcome outcome = choose(menu_rows(question), fallback_row(questionnaire));
    if (outcome.kind == MenuOutcome::Kind::kEnded) return std::optional<std::string>();
    if (outcome.kind == MenuOutcome::Kind::kRow)
      return std::optional(std::string(split_choices(question.choices)[outcome.row]));
  }
  print(out, shown_by_lines(questionnaire));
  return read_line(in);
}

}  // namespace

Result<Answers> hold_dialogue(std::FILE* in, std::FILE* out, const MenuChooser& choose) {
  Questionnaire questionnaire;
  while (questionnaire.next() != nullptr) {
    auto line = ask_question(questionnaire, in, out, choose);
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
