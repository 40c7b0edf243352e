#include "launcher/node_range.h"

#include "launcher/number_text.h"

namespace accel::launcher {

std::optional<NodeRange> parse_node_range(std::string_view text) {
  const std::size_t colon = text.find(':');
  const auto least = typed_number<int>(text.substr(0, colon));
  const auto most =
      colon == std::string_view::npos ? least : typed_number<int>(text.substr(colon + 1));
  const bool is_good = least && most && *least >= 1 && *least <= *most && *most <= kMostJobNodes;
  return is_good ? std::optional(NodeRange{*least, *most}) : std::nullopt;
}

}  // namespace accel::launcher
