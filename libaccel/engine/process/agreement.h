// Agreement: what the ranks tell each other so that all of them go on, or all throw.
//
// Every rank calls these, and they throw kPeerLost and kProcessGroup beside what they say. A text has no zeros. `longest`, the
// same on all ranks, is what each sends; a longer text is cut.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <accel/error.h>
#include <accel/result.h>

namespace accel {

class ProcessGroup;

inline constexpr std::int64_t kAnyLength = -1;  // costs one more message, of 8 bytes

// Runs `action` and tells the others how it ended. Returns where it threw on no rank. Else throws on all: its own Error on
// a rank that has one; on the others one of the same code that names the first such rank, its message and its remedy
// (together cut to 1 KiB). Another std::exception passes through on its rank, and is kInternal on the others. What is none
// passes through on its rank alone. group: nullptr for a process alone. Cost: one message of 1 KiB.
void jointly(const std::function<void()>& action, ProcessGroup* group, std::string_view operation);

// The texts of all ranks, in rank order.
[[nodiscard]] std::vector<std::string> gather_texts(std::string_view text,
                                                    std::int64_t longest,
                                                    ProcessGroup& group,
                                                    std::string_view operation);

// The same where a rank may have none: then, on all ranks, the error of the first such rank, which its message names.
[[nodiscard]] Result<std::vector<std::string>> gather_results(const Result<std::string>& own,
                                                              std::int64_t longest,
                                                              ProcessGroup& group,
                                                              std::string_view operation);

// The first rank whose text differs from rank 0's, and how, on all ranks alike: as `difference` says of two texts, which finds
// none where they mean the same. Cost: one message of 16 bytes, and the texts where they differ.
struct Deviation {
  int rank = 0;
  std::string difference;
};
using Difference = std::optional<std::string>(const std::string& reference,
                                              const std::string& other);
[[nodiscard]] std::optional<Deviation> first_deviation(std::string_view text,
                                                       Difference* difference,
                                                       ProcessGroup& group,
                                                       std::string_view operation);

// The lines of a text, without their ends: to find where two texts differ.
[[nodiscard]] std::vector<std::string> lines_of(const std::string& text);

// How a rank's work went, as it tells the others; cut short, an error loses its end alone. Pure.
[[nodiscard]] std::string outcome_text(const Result<std::string>& outcome);
[[nodiscard]] Result<std::string> outcome_of(std::string_view text);

}  // namespace accel
