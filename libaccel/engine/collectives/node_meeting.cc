#include "libaccel/engine/collectives/node_meeting.h"

#include <string>
#include <utility>
#include <vector>

#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

namespace accel {
namespace {

constexpr StoreRound kWhere{"nodes/where", "say which node they are on"};
constexpr StoreRound kMet{"nodes/met", "say whether their node shares memory"};

std::string location_of(const NodeMeetingOptions& options) {
  if (!options.shm.node) return refusal_text(options.shm.node.error().message());
  return std::to_string(options.launcher_node) + " " + to_text(*options.shm.node);
}

// What is in the way of ranks that say this; empty when nothing is.
std::string obstacle(const std::vector<std::string>& said) {
  for (std::size_t rank = 0; rank < said.size(); ++rank) {
    if (const auto why = reason_of_refusal(said[rank]))
      return "rank " + std::to_string(rank) + ": " + *why;
  }
  return {};
}

}  // namespace

Result<std::unique_ptr<shm::ShmGroup>> meet_on_node(const c10::intrusive_ptr<c10d::Store>& store,
                                                    const NodeLayout& layout,
                                                    const ShmMeetingOptions& all) {
  const int node = layout.node_of(all.member.rank);
  ShmMeetingOptions own = all;
  own.group.names.clear();
  for (const int rank : layout.nodes[static_cast<std::size_t>(node)])
    own.group.names.push_back(all.group.names[static_cast<std::size_t>(rank)]);
  own.member.rank = layout.place_of(all.member.rank);
  own.member.world_size = own.group.shape.world_size = static_cast<int>(own.group.names.size());
  c10d::PrefixStore part("nodes/" + std::to_string(node), store);
  return meet_in_shared_memory(part, own);
}

Result<MetNode> meet_by_nodes(const c10::intrusive_ptr<c10d::Store>& store,
                              const NodeMeetingOptions& options) {
  const StoreMember& member = options.shm.member;
  const auto locations = exchange(*store, kWhere, member, location_of(options));
  if (std::string why = obstacle(locations); !why.empty())
    return Error(ErrorCode::kUnsupported, std::move(why));
  MetNode met = {.layout = layout_of(locations), .group = nullptr};
  if (met.layout.num_nodes() < 2)
    return Error(ErrorCode::kUnsupported, "all ranks are on one node, by the kernel's word");
  if (!met.layout.is_even()) {
    return Error(ErrorCode::kUnsupported,
                 "there are " + to_text(met.layout) + ", and each needs as many");
  }
  auto group = meet_on_node(store, met.layout, options.shm);
  const std::string answer = group ? "yes" : refusal_text(group.error().message());
  if (std::string why = obstacle(exchange(*store, kMet, member, answer)); !why.empty())
    return Error(ErrorCode::kUnsupported, std::move(why));
  met.group = *std::move(group);
  return met;
}

}  // namespace accel
