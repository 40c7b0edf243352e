#include "launcher/config/questionnaire/questionnaire.h"

#include <cctype>
#include <cmath>
#include <optional>
#include <utility>

#include "launcher/text/choice_list.h"
#include "runtime/printable.h"
#include "runtime/text/letter_case.h"
#include "runtime/text/number_text.h"
#include "runtime/trimmed.h"

namespace accel::launcher {
namespace {

constexpr std::string_view kAnswerBlanks = " \t\r";

std::string with_names(std::string_view text, const Answers& answers) {
  const std::string type = answers.distributed_type();
  std::string devices = "GPU(s)";
  if (type == "MULTI_CPU") devices = "processes";
  if (type == "MULTI_NEURON") devices = "Neuron cores";
  if (type == "XLA") devices = "TPU cores";
  for (const char* kind : {"XPU", "HPU", "NPU", "MLU", "SDAA", "MUSA"}) {
    if (type == "MULTI_" + std::string(kind)) devices = std::string(kind) + "(s)";
  }
  std::string out(text);
  const auto put = [&out](std::string_view name, const std::string& value) {
    const std::size_t place = out.find(name);
    if (place != std::string::npos) out.replace(place, name.size(), value);
  };
  put("{devices}", devices);
  put("{machines}", std::to_string(answers.number("num_machines", 1)));
  return out;
}

Error expected(std::string_view line, const std::string& what) {
  return Error(ErrorCode::kInvalidArgument,
               "'" + printable(line) + "' cannot be used: expected " + what);
}

Result<ConfigValue> yes_or_no(std::string_view line) {
  const std::string word = lowercase(line);
  if (is_one_of(word, "yes,y,true")) return bool_value(true);
  if (is_one_of(word, "no,n,false")) return bool_value(false);
  return expected(line, "yes or no");
}

ConfigValue choice_value(const Question& question, std::size_t index) {
  const auto values = split_choices(question.values.empty() ? question.choices : question.values);
  const auto number = number_of<std::int64_t>(values[index]);
  return number ? integer_value(*number) : text_value(values[index]);
}

Result<ConfigValue> choice(const Question& question, std::string_view line) {
  const auto choices = split_choices(question.choices);
  for (std::size_t i = 0; i < choices.size(); ++i) {
    if (lowercase(line) == lowercase(choices[i])) return choice_value(question, i);
  }
  const auto index = number_of<std::size_t>(line);
  if (index && *index < choices.size() && !has_number_choices(question))
    return choice_value(question, *index);
  if (!has_number_choices(question))
    return expected(line, "a number from 0 to " + std::to_string(choices.size() - 1));
  return expected(line, "one of " + std::string(question.choices));
}

Result<ConfigValue> integer(const Question& question, std::string_view line) {
  const auto number = number_of<std::int64_t>(line);
  if (number && *number >= question.least && *number <= question.most)
    return integer_value(*number);
  return expected(line,
                  "a whole number from " + std::to_string(question.least) + " to " +
                      std::to_string(question.most));
}

Result<ConfigValue> fraction(std::string_view line) {
  const auto number = number_of<double>(line);
  if (!number || !std::isfinite(*number) || *number < 0)
    return expected(line, "a number from 0, as in 1 or 0.5");
  const bool is_whole = line.find_first_of(".eE") == std::string_view::npos;
  return ConfigValue{*number, std::string(line) + (is_whole ? ".0" : ""), 0};
}

ConfigValue list_value(std::string_view line) {
  ConfigValue::List items;
  for (const std::string_view item : split_choices(line)) {
    if (!trimmed(item, kAnswerBlanks).empty())
      items.push_back(text_value(trimmed(item, kAnswerBlanks)));
  }
  return {std::move(items), "", 0};
}

Result<ConfigValue> answered_value(const Question& question, std::string_view line) {
  switch (question.kind) {
    case AnswerKind::kYesNo:
      return yes_or_no(line);
    case AnswerKind::kChoice:
      return choice(question, line);
    case AnswerKind::kInteger:
      return integer(question, line);
    case AnswerKind::kNumber:
      return fraction(line);
    case AnswerKind::kList:
      return list_value(line);
    case AnswerKind::kText:
    case AnswerKind::kListItem:
      break;
  }
  if (line.empty()) return expected(line, "a text");
  return text_value(line);
}

}  // namespace

bool has_number_choices(const Question& question) {
  return !question.choices.empty() &&
         std::isdigit(static_cast<unsigned char>(question.choices.front())) != 0;
}

Questionnaire::Questionnaire() {
  const QuestionGroup groups[] = {environment_questions(),
                                  machine_questions(),
                                  account_questions(),
                                  dynamo_questions(),
                                  deepspeed_questions(),
                                  fsdp_questions(),
                                  parallelism_questions(),
                                  megatron_questions(),
                                  process_questions(),
                                  tpu_questions(),
                                  sagemaker_job_questions(),
                                  precision_questions(),
                                  fp8_questions()};
  for (const QuestionGroup& group : groups) {
    for (const Question& question : group.questions) rows_.push_back({group.applies, &question});
  }
}

bool Questionnaire::applies(const Row& row) const {
  return (row.group_applies == nullptr || row.group_applies(answers_)) &&
         (row.question->applies == nullptr || row.question->applies(answers_));
}

void Questionnaire::skip() {
  while (position_ < rows_.size() && !applies(rows_[position_])) ++position_;
}

const Question* Questionnaire::next() const noexcept {
  return position_ < rows_.size() ? rows_[position_].question : nullptr;
}

std::string Questionnaire::text() const {
  return with_names(next()->text, answers_);
}

std::string Questionnaire::fallback() const {
  return with_names(next()->fallback, answers_);
}

Result<void> Questionnaire::answer(std::string_view line) {
  const Question& question = *next();
  const std::string otherwise = fallback();
  std::string_view word = trimmed(line, kAnswerBlanks);
  if (printable(word) != word) return expected(word, "text without control characters");
  if (word.empty()) word = otherwise;
  Result<ConfigValue> value = answered_value(question, word);
  if (!value) return std::move(value).error();
  if (question.objects != nullptr) {
    const std::string_view reason = question.objects(*value, answers_);
    if (!reason.empty()) return Error(ErrorCode::kInvalidArgument, std::string(reason));
  }
  if (question.kind == AnswerKind::kListItem) {
    answers_.append(question.key, *std::move(value));
  } else {
    answers_.set(question.key, *std::move(value));
  }
  ++position_;
  if (!question.again.empty() && answers_.is_on(question.key)) {
    while (rows_[position_].question->key != question.again) --position_;
  }
  skip();
  return {};
}

}  // namespace accel::launcher
