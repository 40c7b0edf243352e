// Questionnaire: the questions of `accel config` as a state machine. Answers go in, the next question
// comes out; it neither reads nor prints.
//
//   asking --answer()--> asking (the next row whose conditions hold) ... --the last row--> complete
//
// An answer that cannot be used leaves the question where it is. Rows before the present one are never
// asked again but for a loop (Question::again), so conditions only see what is settled.
//
// Threads:  one at a time.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include <accel/result.h>

#include "launcher/config/questionnaire/question.h"

namespace accel::launcher {

class Questionnaire {
 public:
  Questionnaire();

  // nullptr: it is complete.
  [[nodiscard]] const Question* next() const noexcept;
  // Of next(), with names put into their places; empty: a text that must be given.
  [[nodiscard]] std::string text() const;
  [[nodiscard]] std::string fallback() const;

  // `line` as it was typed: yes, no or their first letter; a choice or its number from 0 (where the
  // choices are no numbers themselves); empty for the fallback. Requires next().
  // Errors  kInvalidArgument: what was expected, in one line.
  [[nodiscard]] Result<void> answer(std::string_view line);

  [[nodiscard]] const Answers& answers() const noexcept { return answers_; }

 private:
  struct Row {
    Condition group_applies;
    const Question* question;
  };

  [[nodiscard]] bool applies(const Row& row) const;
  void skip();

  std::vector<Row> rows_;
  std::size_t position_ = 0;
  Answers answers_;
};

// A choice of this question is meant by its own number, not by its place.
[[nodiscard]] bool has_number_choices(const Question& question);

}  // namespace accel::launcher
