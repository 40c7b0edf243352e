// TextComparison: what ranks say of something that they should agree on, where they do not.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace accel {

class ProcessGroup;

// The texts of all ranks, in rank order, when they are not all equal; else none. A text has no zeros. Throws kPeerLost,
// kProcessGroup. Requires: every rank calls it. Cost: one message of 16 bytes, and the texts where they differ.
[[nodiscard]] std::vector<std::string> differing_texts(std::string_view text,
                                                       ProcessGroup& group,
                                                       std::string_view operation);

// The lines of a text, without their ends: to find where two texts differ.
[[nodiscard]] std::vector<std::string> lines_of(const std::string& text);

}  // namespace accel
