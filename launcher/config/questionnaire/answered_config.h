// AnsweredConfig: the configuration that the answers of a whole questionnaire make.
//
// Threads:  pure functions.
#pragma once

#include <string>
#include <vector>

#include "launcher/config/questionnaire/answers.h"

namespace accel::launcher {

// What an answer's path is completed with.
struct PathContext {
  std::string home;    // for a leading ~; empty: it stays
  std::string folder;  // where relative paths begin
};

// In normal form (config_normal_form.h), keys in alphabetical order.
[[nodiscard]] ConfigValue::Map answered_config(const Answers& answers, const PathContext& context);

// What the user should know or do besides, a line each.
[[nodiscard]] std::vector<std::string> closing_notes(const Answers& answers);

}  // namespace accel::launcher
