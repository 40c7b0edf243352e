#include "checkpoint_tools/formats/pickle.h"

#include <algorithm>
#include <bit>

namespace accel::launcher {

std::optional<std::int64_t> Pickle::integer(PickleNode node) const {
  if (kind(node) != PickleKind::kInteger) return std::nullopt;
  return nodes_[node].integer;
}

std::optional<bool> Pickle::boolean(PickleNode node) const {
  if (kind(node) != PickleKind::kBool) return std::nullopt;
  return nodes_[node].integer != 0;
}

std::optional<double> Pickle::real(PickleNode node) const {
  if (kind(node) != PickleKind::kFloat) return std::nullopt;
  std::uint64_t bits = 0;  // the pickle has them big-endian
  for (std::size_t i = 0; i < sizeof bits; ++i)
    bits = bits << 8 | static_cast<unsigned char>(nodes_[node].text[i]);
  return std::bit_cast<double>(bits);
}

std::optional<std::string_view> Pickle::text(PickleNode node) const {
  if (kind(node) != PickleKind::kText) return std::nullopt;
  return std::string_view(nodes_[node].text, nodes_[node].count);
}

std::optional<std::string_view> Pickle::name(PickleNode node) const {
  if (kind(node) != PickleKind::kName) return std::nullopt;
  return std::string_view(nodes_[node].text, nodes_[node].count);
}

std::optional<std::span<const PickleNode>> Pickle::sequence(PickleNode node) const {
  if (kind(node) != PickleKind::kTuple && kind(node) != PickleKind::kList) return std::nullopt;
  return items(node);
}

std::optional<std::span<const PickleNode>> Pickle::entries(PickleNode node) const {
  if (kind(node) == PickleKind::kDict) return items(node);
  if (made_by(node) != "collections OrderedDict") return std::nullopt;
  const auto set = items(node).subspan(kObjectHead);
  if (set.size() % 2 != 0) return std::nullopt;
  return set;
}

std::optional<std::span<const PickleNode>> Pickle::persistent_id(PickleNode node) const {
  if (kind(node) != PickleKind::kPersistent) return std::nullopt;
  return items(node);
}

std::optional<std::string_view> Pickle::made_by(PickleNode node) const {
  if (kind(node) != PickleKind::kObject) return std::nullopt;
  return name(items(node)[0]);
}

std::span<const PickleNode> Pickle::arguments(PickleNode node) const {
  if (kind(node) != PickleKind::kObject) return {};
  return items(items(node)[1]);
}

std::optional<PickleNode> Pickle::state(PickleNode node) const {
  if (kind(node) != PickleKind::kObject || items(node)[2] == kNoNode) return std::nullopt;
  return items(node)[2];
}

std::optional<PickleNode> Pickle::field(PickleNode node, std::string_view key) const {
  const auto pairs = entries(state(node).value_or(node));
  if (!pairs) return std::nullopt;
  const std::size_t count = std::min(pairs->size(), 2 * kMostFields);
  for (std::size_t i = 0; i + 1 < count; i += 2)
    if (text((*pairs)[i]) == key) return (*pairs)[i + 1];
  return std::nullopt;
}

void Pickle::add_items(PickleNode number, std::span<const PickleNode> values) {
  Node& node = nodes_[number];
  if (values.empty()) return;
  const std::size_t count = node.count + values.size();
  if (!node.has_room || count > std::bit_ceil(node.count)) {
    const std::size_t room = std::bit_ceil(count);
    auto* moved =
        static_cast<PickleNode*>(memory_->allocate(room * sizeof(PickleNode), alignof(PickleNode)));
    std::ranges::copy(items(number), moved);
    node.items = moved;
    node.has_room = true;
  }
  std::ranges::copy(values, node.items + node.count);
  node.count = static_cast<std::uint32_t>(count);
}

}  // namespace accel::launcher
