#include "libaccel/engine/homes/node_offer.h"

#include "libaccel/engine/shm/memory/node_identity.h"

namespace accel::sharding {

Result<std::string> node_offer(int memory) {
  const auto node = shm::read_node_identity();
  if (!node) return node.error();
  if (memory < 0) return to_text(*node) + "|";
  const auto offer = shm::offer_memory(memory);
  if (!offer) return offer.error();
  return to_text(*node) + "|" + to_text(*offer);
}

std::optional<std::size_t> rank_elsewhere(const std::vector<std::string>& said) {
  const auto node_of = [](const std::string& text) { return text.substr(0, text.find('|')); };
  for (std::size_t rank = 1; rank < said.size(); ++rank) {
    if (node_of(said[rank]) != node_of(said[0])) return rank;
  }
  return std::nullopt;
}

Result<shm::MemoryOffer> offer_of(const std::string& said) {
  return shm::parse_memory_offer(said.substr(said.find('|') + 1));
}

}  // namespace accel::sharding
