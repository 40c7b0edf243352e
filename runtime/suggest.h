// Suggest: the known word that a mistyped one most likely stands for.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace accel {

// The candidate with the fewest edits (insert, delete, replace, swap neighbours), if it needs at
// most a third of the word's length of them, and at least one letter is right. Ties: the first
// candidate.
[[nodiscard]] std::optional<std::string> nearest(std::string_view word,
                                                 const std::vector<std::string>& candidates);

}  // namespace accel
