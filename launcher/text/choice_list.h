// ChoiceList: the words that may stand for a value, as the tables of flags, keys and questions have them: "no,fp16,bf16".
//
// Threads:  pure functions; what they return points into `choices`.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace accel::launcher {

[[nodiscard]] std::vector<std::string_view> split_choices(std::string_view choices);

// "no, fp16, bf16", for people.
[[nodiscard]] std::string listed_choices(std::string_view choices);

// The choice that `text` is, in capital or small letters, as the list spells it.
[[nodiscard]] std::optional<std::string_view> find_choice(std::string_view choices,
                                                          std::string_view text);

}  // namespace accel::launcher
