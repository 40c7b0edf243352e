#include "libaccel/engine/shm/group/point_to_point.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <string>
#include <utility>

namespace accel::shm {
namespace {

struct Header {
  std::int32_t tag = 0;
  std::uint32_t unused = 0;
  std::uint64_t bytes = 0;
};

std::size_t num_readable(const Ring& ring) noexcept {
  return static_cast<std::size_t>(ring.written.load(std::memory_order_acquire) -
                                  ring.read.load(std::memory_order_relaxed));
}

// Copies from or to `bytes` of a ring that begin at the count `at`, where the ring wraps too.
template <typename Copy>
void for_each_part(std::size_t capacity, std::uint64_t at, std::size_t bytes, Copy copy) {
  const auto begin = static_cast<std::size_t>(at % capacity);
  const std::size_t first = std::min(bytes, capacity - begin);
  copy(begin, 0, first);
  if (bytes > first) copy(0, first, bytes - first);
}

// How many of `bytes` the ring has taken.
std::size_t write(
    Ring& ring, std::byte* room, std::size_t capacity, const std::byte* in, std::size_t bytes) {
  const std::uint64_t written = ring.written.load(std::memory_order_relaxed);
  const auto used = static_cast<std::size_t>(written - ring.read.load(std::memory_order_acquire));
  const std::size_t moved = std::min(bytes, capacity - used);
  if (moved == 0) return 0;
  for_each_part(capacity, written, moved, [&](std::size_t at, std::size_t done, std::size_t size) {
    std::memcpy(room + at, in + done, size);
  });
  ring.written.store(written + moved, std::memory_order_release);
  return moved;
}

// How many of `bytes` the ring had.
std::size_t read(
    Ring& ring, const std::byte* room, std::size_t capacity, std::byte* out, std::size_t bytes) {
  const std::size_t moved = std::min(bytes, num_readable(ring));
  if (moved == 0) return 0;
  const std::uint64_t at_count = ring.read.load(std::memory_order_relaxed);
  for_each_part(capacity, at_count, moved, [&](std::size_t at, std::size_t done, std::size_t size) {
    std::memcpy(out + done, room + at, size);
  });
  ring.read.store(at_count + moved, std::memory_order_release);
  return moved;
}

}  // namespace

PointToPoint::PointToPoint(const GroupMemory& memory,
                           int rank,
                           int world_size,
                           std::size_t most_aside)
    : memory_(memory),
      rank_(rank),
      peers_(static_cast<std::size_t>(world_size)),
      most_aside_(most_aside) {}

void PointToPoint::post(TransferPtr transfer) {
  ++num_open_;
  if (transfer->is_sent)
    peers_[static_cast<std::size_t>(transfer->peer)].outgoing.push_back(std::move(transfer));
  else
    awaited_.push_back(std::move(transfer));
}

Result<bool> PointToPoint::progress() {
  bool has_moved = false;
  for (auto next = awaited_.begin(); next != awaited_.end();) {
    const auto transfer = next++;
    auto taken = take_aside(*transfer);
    if (!taken) return taken;
    if (!*taken) continue;
    awaited_.erase(transfer);
    has_moved = true;
  }
  for (int peer = 0; peer < static_cast<int>(peers_.size()); ++peer) {
    if (peer == rank_) continue;
    if (push(peer)) {
      ring_bell(memory_.bell(peer));
      has_moved = true;
    }
    auto pulled = pull(peer);
    if (!pulled) return pulled;
    if (*pulled) {
      ring_bell(memory_.bell(peer));
      has_moved = true;
    }
  }
  return has_moved;
}

// ---- to a peer ----

bool PointToPoint::push(int peer) {
  Peer& state = peers_[static_cast<std::size_t>(peer)];
  Ring& ring = memory_.ring(rank_, peer);
  std::byte* const room = memory_.ring_room(rank_, peer);
  const std::size_t capacity = memory_.ring_bytes();
  bool has_moved = false;
  while (!state.outgoing.empty()) {
    Transfer& transfer = *state.outgoing.front();
    const Header header = {.tag = transfer.tag, .bytes = transfer.bytes};
    std::size_t moved = 0;
    if (state.written < sizeof header) {
      const auto* bytes = reinterpret_cast<const std::byte*>(&header);
      moved = write(ring, room, capacity, bytes + state.written, sizeof header - state.written);
    } else {
      const std::size_t done = state.written - sizeof header;
      moved = write(ring, room, capacity, transfer.data + done, transfer.bytes - done);
    }
    state.written += moved;
    has_moved = has_moved || moved > 0;
    if (state.written == sizeof header + transfer.bytes) {
      finish(transfer);
      state.outgoing.pop_front();
      state.written = 0;
    } else if (moved == 0) {
      break;
    }
  }
  return has_moved;
}

// ---- from a peer ----

Result<bool> PointToPoint::pull(int peer) {
  Peer& state = peers_[static_cast<std::size_t>(peer)];
  Ring& ring = memory_.ring(peer, rank_);
  const std::byte* const room = memory_.ring_room(peer, rank_);
  bool has_moved = false;
  for (;;) {
    if (!state.incoming) {
      auto begun = begin_message(peer);
      if (!begun) return begun;
      if (!*begun) return has_moved;
      has_moved = true;
    }
    Incoming& incoming = *state.incoming;
    std::byte* const out = incoming.transfer ? incoming.transfer->data : incoming.aside.data();
    const std::size_t moved =
        read(ring, room, memory_.ring_bytes(), out + incoming.read, incoming.bytes - incoming.read);
    incoming.read += moved;
    has_moved = has_moved || moved > 0;
    if (incoming.read < incoming.bytes) return has_moved;
    if (auto ended = end_message(peer); !ended) return std::move(ended).error();
  }
}

// Reads the next header, when it is there and somebody waits for something of this peer.
Result<bool> PointToPoint::begin_message(int peer) {
  Ring& ring = memory_.ring(peer, rank_);
  if (num_readable(ring) < sizeof(Header) || !is_awaited(peer)) return false;
  Header header;
  (void)read(ring,
             memory_.ring_room(peer, rank_),
             memory_.ring_bytes(),
             reinterpret_cast<std::byte*>(&header),
             sizeof header);
  Incoming incoming = {.tag = header.tag,
                       .bytes = static_cast<std::size_t>(header.bytes),
                       .transfer = match(peer, header.tag)};
  if (incoming.transfer) {
    if (auto fits = check_size(*incoming.transfer, peer, incoming.bytes); !fits)
      return std::move(fits).error();
  } else if (auto begun = begin_aside(incoming, peer); !begun) {
    return std::move(begun).error();
  }
  peers_[static_cast<std::size_t>(peer)].incoming = std::move(incoming);
  return true;
}

Result<void> PointToPoint::begin_aside(Incoming& incoming, int peer) {
  const std::size_t room = most_aside_ - num_aside_;
  if (room < kAsideOverhead || incoming.bytes > room - kAsideOverhead) {
    return Error(ErrorCode::kOutOfMemory,
                 "rank " + std::to_string(rank_) + " cannot keep a message of " +
                     std::to_string(incoming.bytes) + " bytes with tag " +
                     std::to_string(incoming.tag) + " from rank " + std::to_string(peer) +
                     " until it is received: " + std::to_string(num_aside_) + " of " +
                     std::to_string(most_aside_) + " bytes are taken by messages before it",
                 "receive the messages of a rank in the order in which it sends them");
  }
  incoming.aside.resize(incoming.bytes);
  num_aside_ += incoming.bytes + kAsideOverhead;
  return {};
}

Result<void> PointToPoint::end_message(int peer) {
  Peer& state = peers_[static_cast<std::size_t>(peer)];
  Incoming ended = std::move(*state.incoming);
  state.incoming.reset();
  if (ended.transfer) {
    ended.transfer->peer = peer;
    finish(*ended.transfer);
    return {};
  }
  // A transfer that was posted meanwhile may wait for it.
  state.aside.push_back(std::move(ended));
  const TransferPtr transfer = match(peer, state.aside.back().tag);
  if (!transfer) return {};
  const auto taken = take_aside(transfer);
  return taken ? Result<void>() : Result<void>(taken.error());
}

// Fills the transfer with the first such message that was put aside.
Result<bool> PointToPoint::take_aside(const TransferPtr& transfer) {
  for (int peer = 0; peer < static_cast<int>(peers_.size()); ++peer) {
    if (transfer->peer != kAnyRank && transfer->peer != peer) continue;
    auto& aside = peers_[static_cast<std::size_t>(peer)].aside;
    const auto found = std::find_if(aside.begin(), aside.end(), [&](const Incoming& message) {
      return message.tag == transfer->tag;
    });
    if (found == aside.end()) continue;
    if (auto fits = check_size(*transfer, peer, found->bytes); !fits)
      return std::move(fits).error();
    if (found->bytes > 0) std::memcpy(transfer->data, found->aside.data(), found->bytes);
    num_aside_ -= found->bytes + kAsideOverhead;
    aside.erase(found);
    transfer->peer = peer;
    finish(*transfer);
    return true;
  }
  return false;
}

TransferPtr PointToPoint::match(int peer, std::int32_t tag) {
  const auto found =
      std::find_if(awaited_.begin(), awaited_.end(), [&](const TransferPtr& transfer) {
        return transfer->tag == tag && (transfer->peer == peer || transfer->peer == kAnyRank);
      });
  if (found == awaited_.end()) return nullptr;
  TransferPtr transfer = *found;
  awaited_.erase(found);
  return transfer;
}

bool PointToPoint::is_awaited(int peer) const {
  return std::any_of(awaited_.begin(), awaited_.end(), [&](const TransferPtr& transfer) {
    return transfer->peer == peer || transfer->peer == kAnyRank;
  });
}

Result<void> PointToPoint::check_size(const Transfer& transfer, int peer, std::size_t bytes) const {
  if (transfer.bytes == bytes) return {};
  return Error(ErrorCode::kShapeMismatch,
               "rank " + std::to_string(rank_) + " receives " + std::to_string(transfer.bytes) +
                   " bytes with tag " + std::to_string(transfer.tag) + ", and rank " +
                   std::to_string(peer) + " sends " + std::to_string(bytes));
}

void PointToPoint::finish(Transfer& transfer) {
  transfer.is_done = true;
  transfer.keep.reset();
  --num_open_;
}

}  // namespace accel::shm
