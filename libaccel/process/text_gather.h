// TextGather: what each rank has to say, as all ranks hear it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace accel {

class ProcessGroup;

// The texts of all ranks, in rank order, each up to its first zero and to `longest` bytes. `longest`, the same on all
// ranks, is what each sends. Throws kPeerLost, kProcessGroup. Requires: every rank calls it.
[[nodiscard]] std::vector<std::string> gather_texts(std::string_view text,
                                                    std::int64_t longest,
                                                    ProcessGroup& group,
                                                    std::string_view operation);

// What a rank says that cannot say what it should; and who reads it: "rank 2: why", nothing when said[rank] is no refusal.
[[nodiscard]] std::string refusal(std::string_view why);
[[nodiscard]] std::optional<std::string> refusal_of(const std::vector<std::string>& said,
                                                    std::size_t rank);

}  // namespace accel
