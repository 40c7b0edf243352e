#include "launcher/workers/node_range.h"

#include "launcher/text/faults.h"
#include "runtime/text/number_text.h"

namespace accel::launcher {

std::optional<NodeRange> parse_node_range(std::string_view text) {
  const std::size_t colon = text.find(':');
  const auto least = typed_number<int>(text.substr(0, colon));
  const auto most =
      colon == std::string_view::npos ? least : typed_number<int>(text.substr(colon + 1));
  const bool is_good = least && most && *least >= 1 && *least <= *most && *most <= kMostJobNodes;
  return is_good ? std::optional(NodeRange{*least, *most}) : std::nullopt;
}

Result<int> share_of_each_node(int total, NodeRange nodes, const TotalWords& words) {
  const std::string of_each = words.of_each + " N, the processes of each node";
  if (nodes.least != nodes.most) {
    return usage_error(words.total + " counts the processes of all nodes, and " + words.nodes +
                           " leaves open how many nodes there are",
                       "give " + of_each);
  }
  if (total % nodes.least == 0) return total / nodes.least;
  const std::string number = std::to_string(nodes.least);
  return Error(ErrorCode::kInvalidArgument,
               words.total + " is " + std::to_string(total) + ", which does not divide by the " +
                   number + " nodes of the job",
               "give a multiple of " + number + ", or " + of_each);
}

}  // namespace accel::launcher
