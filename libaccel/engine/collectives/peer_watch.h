// PeerWatch: which ranks have closed their connections to this one, and why.
//
// Gloo tells of a closed connection to who waits for the first byte of a message. It passes over a send whose bytes are under
// way or were refused by the kernel, and over a receive that has begun: they would wait for the timeout. So two receives stay
// open on every connection, and are looked at now and then:
//
//   wire       never sent: it fails when the connection closes
//   failure    sent by a rank that meets an error, or leaves in order, before it closes. Where none came, the process has
//              ended without a word
//
// Threads:  one thread at a time.
// Cost:     1 KiB for each other rank; a look takes less than a microsecond for each, and sends nothing.
// Source:   Pair::signalException() and UnboundBuffer::waitRecv() of Gloo, transport/tcp; tests/unit/libaccel/collectives/
//           peer_watch_test.cc.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <accel/error.h>

namespace c10d {
class Backend;
}

namespace accel {

class WaitInterrupter;

// Why the group is over.
struct GroupFailure {
  int rank = 0;  // that met it first
  ErrorCode code = ErrorCode::kPeerLost;
  std::string message;  // cut to 488 bytes on its way

  friend bool operator==(const GroupFailure&, const GroupFailure&) = default;
};

// Of a rank whose connection is closed.
struct RankEnd {
  int rank = 0;
  std::optional<GroupFailure> failure;  // of an error
  bool has_left =
      false;  // in order: no cause of anything. Neither of both: it has ended without a word
};

// What a rank tells of its own error, knowing who is gone: a rank that has ended without a word is the cause, before any that
// has met an error; one that has left in order is none. An error that is not kPeerLost is its own cause. Pure.
[[nodiscard]] GroupFailure cause_of(int own_rank, const Error& own, std::span<const RankEnd> ends);
// The error of rank `own_rank` for that cause, with the context of its own, and its remedy when it is the cause. Pure.
[[nodiscard]] Error error_for(int own_rank, const Error& own, const GroupFailure& cause);
// Whether who waits for rank `peer`, or shm::kAnyRank, waits in vain: it has ended, or any rank has met an error. Of anybody
// also when any has ended without a word, or all of the others have left. Pure.
[[nodiscard]] bool is_in_vain(int peer, std::span<const RankEnd> ends, int num_others);

class PeerWatch {
 public:
  static constexpr int kNumTags = 2;

  // Tags first_tag and first_tag + 1 of the backend belong to this. Requires: every rank makes one.
  PeerWatch(c10d::Backend& backend, WaitInterrupter& wait_interrupter, int first_tag);
  ~PeerWatch();
  PeerWatch(const PeerWatch&) = delete;
  PeerWatch& operator=(const PeerWatch&) = delete;

  // Those whose connections have been seen to be closed, in the order of ranks.
  [[nodiscard]] const std::vector<RankEnd>& look();
  // Says it to all who are still there, and waits for half a second at most until it is on its way.
  void say(const GroupFailure& failure) noexcept;
  // Likewise, that this rank leaves in order.
  void say_left() noexcept;

 private:
  struct Peer;

  void send(void* notice, std::size_t bytes) noexcept;
  [[nodiscard]] static bool is_closed(const Peer& peer);
  [[nodiscard]] RankEnd end_of(const Peer& peer);

  c10d::Backend& backend_;
  WaitInterrupter& wait_interrupter_;
  int first_tag_;
  std::vector<Peer> peers_;  // still there
  std::vector<RankEnd> ends_;
};

}  // namespace accel
