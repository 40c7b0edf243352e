#include "libaccel/engine/collectives/node_layout.h"

#include <algorithm>
#include <map>

namespace accel {

bool NodeLayout::is_even() const noexcept {
  return std::all_of(nodes.begin(), nodes.end(), [&](const std::vector<int>& ranks) {
    return ranks.size() == nodes.front().size();
  });
}

int NodeLayout::node_of(int rank) const {
  const auto node = std::find_if(nodes.begin(), nodes.end(), [&](const std::vector<int>& ranks) {
    return std::binary_search(ranks.begin(), ranks.end(), rank);
  });
  return static_cast<int>(node - nodes.begin());
}

int NodeLayout::place_of(int rank) const {
  const std::vector<int>& ranks = nodes.at(static_cast<std::size_t>(node_of(rank)));
  return static_cast<int>(std::lower_bound(ranks.begin(), ranks.end(), rank) - ranks.begin());
}

NodeLayout NodeLayout::among(const std::vector<int>& ranks) const {
  std::vector<std::string> locations;
  for (const int rank : ranks) locations.push_back(std::to_string(node_of(rank)));
  return layout_of(locations);
}

NodeLayout layout_of(const std::vector<std::string>& locations) {
  NodeLayout layout;
  std::map<std::string, std::size_t> index;
  for (std::size_t rank = 0; rank < locations.size(); ++rank) {
    const auto [entry, is_new] = index.emplace(locations[rank], layout.nodes.size());
    if (is_new) layout.nodes.emplace_back();
    layout.nodes[entry->second].push_back(static_cast<int>(rank));
  }
  return layout;
}

std::string to_text(const NodeLayout& layout) {
  std::string text = std::to_string(layout.num_nodes()) + " nodes with ";
  if (layout.num_nodes() > 0 && layout.is_even())
    return text + std::to_string(layout.nodes[0].size()) + " ranks each";
  for (std::size_t node = 0; node < layout.nodes.size(); ++node) {
    if (node > 0) text += node + 1 < layout.nodes.size() ? ", " : " and ";
    text += std::to_string(layout.nodes[node].size());
  }
  return text + " ranks";
}

}  // namespace accel
