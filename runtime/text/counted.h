// Counted: numbers of things in messages.
//
// Threads:  pure.
#pragma once

#include <concepts>
#include <string>
#include <string_view>

namespace accel {

// "1 node", "2 nodes".
[[nodiscard]] std::string counted(std::integral auto number, std::string_view thing) {
  return std::to_string(number) + ' ' + std::string(thing) + (number == 1 ? "" : "s");
}

}  // namespace accel
