// LinePrefix: what stands before each line of a worker on the console.
//
// Threads:  pure.
#pragma once

#include <string>
#include <string_view>

namespace accel::supervisor {

struct LineOrigin {
  int global_rank = 0;
  int local_rank = 0;
  std::string role = "default";
  std::string_view stream;  // "out" or "err"
};

// An empty template gives "[r3 err] ". Else it is one of Python's string.Template, as torchrun takes it: role_name,
// local_rank and rank are replaced, written as ${rank} or $rank, "$$" is one '$', and everything else stays as it is.
// It ends as it is, too: torchrun's default is "[${role_name}${local_rank}]:".
[[nodiscard]] std::string line_prefix(std::string_view prefix_template, const LineOrigin& origin);

}  // namespace accel::supervisor
