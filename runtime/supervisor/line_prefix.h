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

// An empty template gives "[r3 err] ". Else torchrun's words are replaced in it, ${role_name}, ${local_rank} and
// ${rank}, and it ends as it is: torchrun's default is "[${role_name}${local_rank}]:". Other words stay as they stand.
[[nodiscard]] std::string line_prefix(std::string_view prefix_template, const LineOrigin& origin);

}  // namespace accel::supervisor
