#include "libaccel/engine/collectives/two_level_group.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "libaccel/engine/shm/group/group_checks.h"
#include "libaccel/engine/shm/memory/call.h"

namespace accel {
namespace {

using shm::call_of;
using shm::CallKind;

}  // namespace

std::byte* TwoLevelGroup::Scratch::room(std::size_t bytes) {
  if (bytes > bytes_) {
    memory_.reset();
    memory_ = std::make_unique_for_overwrite<std::byte[]>(bytes);
    bytes_ = bytes;
  }
  return memory_.get();
}

TwoLevelGroup::TwoLevelGroup(Parts parts)
    : parts_(std::move(parts)),
      num_nodes_(parts_.layout.num_nodes()),
      num_places_(static_cast<int>(parts_.layout.nodes.at(0).size())),
      node_(parts_.layout.node_of(parts_.rank)),
      place_(parts_.layout.place_of(parts_.rank)) {
  for (int rank = 0; rank < world_size(); ++rank)
    is_whole_job_ = is_whole_job_ && parts_.names[static_cast<std::size_t>(rank)] == rank;
}

TwoLevelGroup::~TwoLevelGroup() = default;

int TwoLevelGroup::rank_at(int node, int place) const {
  return parts_.layout.nodes[static_cast<std::size_t>(node)][static_cast<std::size_t>(place)];
}

int TwoLevelGroup::name_at(int node, int place) const {
  return parts_.names[static_cast<std::size_t>(rank_at(node, place))];
}

Error TwoLevelGroup::end(Error error) {
  Error ended = parts_.link->end(std::move(error));
  parts_.node->abort();
  return ended;
}

Result<void> TwoLevelGroup::settled(Result<void> done) {
  if (done) return done;
  return end(std::move(done).error())
      .while_doing(text_of(call_) + " between " + to_text(parts_.layout));
}

Result<void> TwoLevelGroup::exchange(std::span<const NodeLink::Outgoing> out,
                                     std::span<const NodeLink::Incoming> in) {
  return parts_.link->exchange(call_, out, in);
}

Result<void> TwoLevelGroup::exchange_with_all(std::vector<NodeLink::Outgoing> out,
                                              std::vector<NodeLink::Incoming> in) {
  for (int node = 0; node < num_nodes_; ++node) {
    const int peer = name_at(node, place_);
    if (node == node_) continue;
    if (std::ranges::find(out, peer, &NodeLink::Outgoing::to) == out.end())
      out.push_back({peer, nullptr, 0});
    if (std::ranges::find(in, peer, &NodeLink::Incoming::from) == in.end())
      in.push_back({peer, nullptr, 0});
  }
  return exchange(out, in);
}

Result<NodeLink::ExchangePtr> TwoLevelGroup::begin_hearing() {
  std::vector<NodeLink::Incoming> in;
  for (int node = 0; node < num_nodes_; ++node) {
    if (node != node_) in.push_back({name_at(node, place_), nullptr, 0});
  }
  return parts_.link->begin(call_, {}, in);
}

// All are told before anything is compared, as in NodeLink::finish().
Result<void> TwoLevelGroup::send_to_all(const NodeLink::ExchangePtr& heard,
                                        std::span<const NodeLink::Outgoing> out) {
  const auto told = parts_.link->begin(call_, out, {});
  if (!told) return told.error();
  if (auto same = parts_.link->finish(heard); !same) return same;
  return parts_.link->finish(*told);
}

Result<void> TwoLevelGroup::barrier() {
  call_ = call_of(CallKind::kBarrier, 0);
  if (auto done = settled(parts_.node->barrier()); !done) return done;
  return settled(exchange_with_all({}, {}));
}

// Then a barrier, since another rank may have given up just now.
Result<void> TwoLevelGroup::monitored_barrier(std::chrono::milliseconds timeout,
                                              shm::RollCall roll_call) {
  call_ = call_of(CallKind::kMonitoredBarrier, 0);
  const auto began = std::chrono::steady_clock::now();
  std::vector<int> others;
  for (int rank = 0; rank < world_size(); ++rank) {
    if (rank != this->rank()) others.push_back(parts_.names[static_cast<std::size_t>(rank)]);
  }
  const auto absent = parts_.link->call_roll(call_, others, timeout, roll_call);
  if (!absent) return settled(absent.error());
  if (!absent->empty()) {
    const auto waited = std::chrono::duration_cast<std::chrono::milliseconds>(
        std::chrono::steady_clock::now() - began);
    return settled(shm::error_of(*absent, world_size(), std::min(waited, timeout)));
  }
  if (auto done = settled(parts_.node->barrier()); !done) return done;
  return settled(exchange_with_all({}, {}));
}

// Over the root's place alone.
Result<void> TwoLevelGroup::broadcast_whole(std::byte* data, std::size_t bytes, int root) {
  const int root_node = parts_.layout.node_of(root);
  const int root_place = parts_.layout.place_of(root);
  std::vector<NodeLink::Outgoing> out;
  std::vector<NodeLink::Incoming> in;
  if (rank() == root) {
    for (int node = 0; node < num_nodes_; ++node) {
      if (node != node_) out.push_back({name_at(node, place_), data, bytes});
    }
  } else if (place_ == root_place) {
    in.push_back({name_at(root_node, place_), data, bytes});
  }
  if (auto done = exchange_with_all(std::move(out), std::move(in)); !done) return done;
  return num_places_ > 1 ? parts_.node->broadcast(data, bytes, root_place) : Result<void>();
}

Result<void> TwoLevelGroup::broadcast_shares(std::byte* data, std::size_t each, int root) {
  const auto places = static_cast<std::size_t>(num_places_);
  const int root_node = parts_.layout.node_of(root);
  std::byte* const mine = data + static_cast<std::size_t>(place_) * each;
  if (node_ == root_node) {
    const auto heard = begin_hearing();
    if (!heard) return heard.error();
    const int root_place = parts_.layout.place_of(root);
    if (auto done = parts_.node->broadcast(data, each * places, root_place); !done) return done;
    std::vector<NodeLink::Outgoing> out;
    for (int node = 0; node < num_nodes_; ++node) {
      if (node != node_) out.push_back({name_at(node, place_), mine, each});
    }
    return send_to_all(*heard, out);
  }
  if (auto done = exchange_with_all({}, {{name_at(root_node, place_), mine, each}}); !done)
    return done;
  std::vector<std::byte*> shares;
  for (std::size_t place = 0; place < places; ++place) shares.push_back(data + place * each);
  return parts_.node->all_gather(mine, shares, each);
}

Result<void> TwoLevelGroup::broadcast(std::byte* data,
                                      std::size_t bytes,
                                      int root,
                                      std::string_view elements) {
  if (auto exists = shm::check_root(root, world_size()); !exists) return exists;
  call_ = call_of(CallKind::kBroadcast, bytes, elements, root);
  const auto places = static_cast<std::size_t>(num_places_);
  const std::size_t each = places > 1 && bytes > kWholeBytes ? bytes / places : 0;
  if (each > 0) {
    if (auto done = settled(broadcast_shares(data, each, root)); !done) return done;
  }
  const std::size_t rest = bytes - each * places;
  if (rest == 0 && bytes > 0) return {};
  return settled(broadcast_whole(data + each * places, rest, root));
}

Result<void> TwoLevelGroup::all_gather(const std::byte* in,
                                       std::span<std::byte* const> out,
                                       std::size_t bytes,
                                       std::string_view elements) {
  call_ = call_of(CallKind::kAllGather, bytes, elements);
  std::vector<NodeLink::Outgoing> transfers;
  std::vector<NodeLink::Incoming> expected;
  const auto mine_of = [&](int node) {
    return out[static_cast<std::size_t>(rank_at(node, place_))];
  };
  for (int node = 0; node < num_nodes_; ++node) {
    if (node == node_) continue;
    transfers.push_back({name_at(node, place_), in, bytes});
    expected.push_back({name_at(node, place_), mine_of(node), bytes});
  }
  if (auto done = settled(exchange(transfers, expected)); !done) return done;
  if (num_places_ == 1) {
    std::byte* const own = mine_of(node_);
    if (own != in && bytes > 0) std::memcpy(own, in, bytes);
    return {};
  }
  for (int node = 0; node < num_nodes_; ++node) {
    std::vector<std::byte*> pieces;
    for (int place = 0; place < num_places_; ++place)
      pieces.push_back(out[static_cast<std::size_t>(rank_at(node, place))]);
    const std::byte* const own = node == node_ ? in : mine_of(node);
    if (auto done = settled(parts_.node->all_gather(own, pieces, bytes)); !done) return done;
  }
  return {};
}

Result<void> TwoLevelGroup::gather(const std::byte* in,
                                   std::span<std::byte* const> out,
                                   std::size_t bytes,
                                   int root,
                                   std::string_view elements) {
  if (auto exists = shm::check_root(root, world_size()); !exists) return exists;
  call_ = call_of(CallKind::kGather, bytes, elements, root);
  const int root_node = parts_.layout.node_of(root);
  const int root_place = parts_.layout.place_of(root);
  if (node_ != root_node) {
    const NodeLink::Outgoing transfer{name_at(root_node, place_), in, bytes};
    return settled(exchange_with_all({transfer}, {}));
  }
  std::byte* const room = incoming_.room(bytes * static_cast<std::size_t>(num_nodes_));
  std::vector<NodeLink::Incoming> expected;
  const auto theirs = [&](int node) { return room + static_cast<std::size_t>(node) * bytes; };
  for (int node = 0; node < num_nodes_; ++node) {
    if (node != node_) expected.push_back({name_at(node, place_), theirs(node), bytes});
  }
  if (auto done = settled(exchange_with_all({}, std::move(expected))); !done) return done;
  for (int node = 0; node < num_nodes_; ++node) {
    std::vector<std::byte*> pieces;
    for (int place = 0; rank() == root && place < num_places_; ++place)
      pieces.push_back(out[static_cast<std::size_t>(rank_at(node, place))]);
    const std::byte* const own = node == node_ ? in : theirs(node);
    if (auto done = settled(parts_.node->gather(own, pieces, bytes, root_place)); !done)
      return done;
  }
  return {};
}

Result<void> TwoLevelGroup::scatter_from_here(std::span<const std::byte* const> in,
                                              std::byte* out,
                                              std::size_t bytes,
                                              int root) {
  const auto heard = begin_hearing();
  if (!heard) return heard.error();
  std::byte* const room = share_.room(bytes * static_cast<std::size_t>(num_nodes_));
  std::vector<NodeLink::Outgoing> transfers;
  for (int node = 0; node < num_nodes_; ++node) {
    std::vector<const std::byte*> pieces;
    for (int place = 0; rank() == root && place < num_places_; ++place)
      pieces.push_back(in[static_cast<std::size_t>(rank_at(node, place))]);
    std::byte* const piece = node == node_ ? out : room + static_cast<std::size_t>(node) * bytes;
    const int root_place = parts_.layout.place_of(root);
    if (auto done = parts_.node->scatter(pieces, piece, bytes, root_place); !done) return done;
    if (node != node_) transfers.push_back({name_at(node, place_), piece, bytes});
  }
  return send_to_all(*heard, transfers);
}

Result<void> TwoLevelGroup::scatter(std::span<const std::byte* const> in,
                                    std::byte* out,
                                    std::size_t bytes,
                                    int root,
                                    std::string_view elements) {
  if (auto exists = shm::check_root(root, world_size()); !exists) return exists;
  call_ = call_of(CallKind::kScatter, bytes, elements, root);
  const int root_node = parts_.layout.node_of(root);
  if (node_ == root_node) return settled(scatter_from_here(in, out, bytes, root));
  return settled(exchange_with_all({}, {{name_at(root_node, place_), out, bytes}}));
}

// Sizes differ from rank to rank: each transfer's is compared by who gets it.
Result<void> TwoLevelGroup::all_to_all(std::span<const std::span<const std::byte>> in,
                                       std::span<const std::span<std::byte>> out,
                                       std::string_view elements) {
  call_ = call_of(CallKind::kAllToAll, 0, elements);
  std::vector<std::span<const std::byte>> node_in;
  std::vector<std::span<std::byte>> node_out;
  std::vector<NodeLink::Outgoing> transfers;
  std::vector<NodeLink::Incoming> expected;
  for (int node = 0; node < num_nodes_; ++node) {
    for (int place = 0; place < num_places_; ++place) {
      const auto rank = static_cast<std::size_t>(rank_at(node, place));
      if (node == node_) {
        node_in.push_back(in[rank]);
        node_out.push_back(out[rank]);
        continue;
      }
      transfers.push_back({name_at(node, place), in[rank].data(), in[rank].size()});
      expected.push_back({name_at(node, place), out[rank].data(), out[rank].size()});
    }
  }
  const auto by_both_ways = [&]() -> Result<void> {
    auto begun = parts_.link->begin(call_, transfers, expected);
    if (!begun) return std::move(begun).error();
    if (auto done = parts_.node->all_to_all(node_in, node_out); !done) return done;
    return parts_.link->finish(*begun);
  };
  return settled(by_both_ways());
}

// ---- messages ----

Result<void> TwoLevelGroup::post(const shm::TransferPtr& transfer) {
  const bool is_any = !transfer->is_sent && transfer->peer == shm::kAnyRank;
  const bool exists =
      transfer->peer >= 0 && transfer->peer < world_size() && transfer->peer != rank();
  if (!exists && !is_any) {
    return Error(ErrorCode::kInvalidArgument,
                 "rank " + std::to_string(rank()) + " has no messages with rank " +
                     std::to_string(transfer->peer) + ": of " + std::to_string(world_size()) +
                     " ranks it takes another one");
  }
  if (!is_whole_job_) {
    return Error(ErrorCode::kUnsupported,
                 "a group of a part of the ranks has no messages of its own",
                 "send through the group of all ranks");
  }
  Result<void> posted = parts_.link->post(transfer);
  const bool is_over = !posted && posted.error().code() == ErrorCode::kPeerLost;
  return is_over ? end(std::move(posted).error()) : std::move(posted);
}

Result<bool> TwoLevelGroup::is_done(const shm::TransferPtr& transfer) {
  Result<bool> done = parts_.link->is_done(transfer);
  return done ? std::move(done) : end(std::move(done).error());
}

Result<void> TwoLevelGroup::wait(const shm::TransferPtr& transfer) {
  Result<void> done = parts_.link->wait(transfer);
  return done ? std::move(done) : end(std::move(done).error());
}

void TwoLevelGroup::abort() noexcept {
  parts_.node->abort();
  parts_.link->abort();
}

}  // namespace accel
