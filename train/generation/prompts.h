// Prompts: token ids as people and programs write them.
//
// Threads:  functions without state.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include <accel/result.h>

namespace accel::train {

// "1,2,3", or with blanks between. name: of the prompt in messages, as "prompt 2". Errors  kInvalidArgument: what is no whole number of
// 0 or more, no token at all.
[[nodiscard]] Result<std::vector<std::int64_t>> prompt_of(std::string_view text,
                                                          const std::string& name);

// One in each line of a file; "-" is standard input. Errors  kConfigUnreadable; as prompt_of().
[[nodiscard]] Result<std::vector<std::vector<std::int64_t>>> prompts_of_file(
    const std::string& path);

}  // namespace accel::train
