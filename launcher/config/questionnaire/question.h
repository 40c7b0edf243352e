// Question: one row of the questionnaire of `accel config`.
//
// The rows stand in the order in which they are asked, and each says by what was answered before whether
// it is asked at all: that is the whole graph of the peer's branches.
//
// Threads:  constant data.
// Source:   accelerate 1.15.0, commands/config/cluster.py and sagemaker.py; tests/peer/config_command.py
//           walks both at random and compares questions and files.
#pragma once

#include <span>
#include <string_view>

#include "launcher/config/questionnaire/answers.h"

namespace accel::launcher {

enum class AnswerKind {
  kYesNo,
  kChoice,    // one of `choices`; those that are numbers are kept as numbers
  kInteger,   // from `least` to `most`
  kNumber,    // at least 0, a fraction too
  kText,      // not empty
  kListItem,  // not empty; added to a list
  kList,      // items between commas; may be empty
};

// The answers to "?machine" that mean several accelerators; MULTI_CPU and XLA are none of them.
inline constexpr std::string_view kAcceleratorMachines =
    "MULTI_GPU,MULTI_NPU,MULTI_MLU,MULTI_SDAA,MULTI_MUSA,MULTI_XPU,MULTI_HPU,MULTI_NEURON";

using Condition = bool (*)(const Answers&);
// Why the value cannot be taken; empty when it can.
using Objection = std::string_view (*)(const ConfigValue& value, const Answers&);

struct Question {
  std::string_view key;   // see Answers
  std::string_view text;  // {devices}: what the workers run on
  AnswerKind kind = AnswerKind::kText;
  std::string_view fallback;    // what an empty line means; {machines}: their number; may be empty
  Condition applies = nullptr;  // nullptr: always
  std::string_view choices;     // what is shown, separated by commas
  std::string_view values;      // what the file says for each; empty: the choices
  Objection objects = nullptr;
  std::string_view again;  // after a yes the questions from this key on come once more
  int least = 0;
  int most = 1'000'000;
};

// Rows that share a condition.
struct QuestionGroup {
  Condition applies = nullptr;  // nullptr: always
  std::span<const Question> questions;
};

// The tables, in files of their own.
[[nodiscard]] QuestionGroup environment_questions();
[[nodiscard]] QuestionGroup machine_questions();
[[nodiscard]] QuestionGroup account_questions();  // of SageMaker
[[nodiscard]] QuestionGroup dynamo_questions();
[[nodiscard]] QuestionGroup deepspeed_questions();
[[nodiscard]] QuestionGroup fsdp_questions();
[[nodiscard]] QuestionGroup parallelism_questions();
[[nodiscard]] QuestionGroup megatron_questions();
[[nodiscard]] QuestionGroup process_questions();
[[nodiscard]] QuestionGroup tpu_questions();
[[nodiscard]] QuestionGroup sagemaker_job_questions();
[[nodiscard]] QuestionGroup precision_questions();
[[nodiscard]] QuestionGroup fp8_questions();

}  // namespace accel::launcher
