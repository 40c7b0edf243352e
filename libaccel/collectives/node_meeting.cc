#include "libaccel/collectives/node_meeting.h"

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
  const int node = met.layout.node_of(member.rank);
  const std::vector<int>& ranks = met.layout.nodes[static_cast<std::size_t>(node)];
  ShmMeetingOptions own = options.shm;
  own.member.rank = met.layout.place_of(member.rank);
  own.member.world_size = static_cast<int>(ranks.size());
  own.group.shape.world_size = own.member.world_size;
  own.group.names = ranks;
  c10d::PrefixStore part("nodes/" + std::to_string(node), store);
  auto group = meet_in_shared_memory(part, own);
  const std::string answer = group ? "yes" : refusal_text(group.error().message());
  if (std::string why = obstacle(exchange(*store, kMet, member, answer)); !why.empty())
    return Error(ErrorCode::kUnsupported, std::move(why));
  met.group = *std::move(group);
  return met;
}

}  // namespace accel
