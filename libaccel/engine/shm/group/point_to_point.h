// PointToPoint: messages between two ranks of a group, through a ring of bytes for each ordered pair.
//
//   sender: its transfers to one rank, in order --> ring --> receiver: matched by sender and tag
//
// Nobody works for a rank while it is outside of the group: a transfer moves when its rank posts it, waits for any transfer, or
// waits in a collective. Then all of its transfers move as far as they can; so two ranks that send to each other first and
// receive afterwards do not wait for ever. A transfer that is sent counts as done when the ring has taken it whole.
//
// A message whose tag nobody waits for is put aside when another one behind it is waited for, up to a limit: the ring
// could not be held back instead, since what is waited for lies behind. Messages of one sender with the same tag arrive in
// the order in which they were sent.
//
// Threads:  one thread at a time.
// Cost:     two copies of each byte; a ring for each pair (GroupMemory::ring_bytes()), whose pages are taken when used.
// Source:   the ring is Lamport's, of one writer and one reader: each owns one counter.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <list>
#include <memory>
#include <optional>
#include <vector>

#include <accel/result.h>

#include "libaccel/engine/shm/memory/group_memory.h"

namespace accel::shm {

inline constexpr int kAnyRank = -1;
// What a message that is put aside costs besides its bytes, so that empty ones are bounded too.
inline constexpr std::size_t kAsideOverhead = 256;

// One message, of the rank that sends or receives it. The memory must stay until is_done; `keep` may hold it.
struct Transfer {
  bool is_sent = false;  // by this rank; else received
  int peer =
      kAnyRank;  // who gets or sent it; of a received one from anybody: known when it is done
  std::int32_t tag = 0;
  std::byte* data = nullptr;
  std::size_t bytes = 0;
  std::shared_ptr<void> keep;
  bool is_done = false;
};
using TransferPtr = std::shared_ptr<Transfer>;

class PointToPoint {
 public:
  // `most_aside`: bytes of messages of all senders that may be aside, with kAsideOverhead each.
  PointToPoint(const GroupMemory& memory, int rank, int world_size, std::size_t most_aside);

  // Posts a transfer; progress() moves it.
  void post(TransferPtr transfer);

  // Moves what can be moved now, without waiting. Whether anything moved. Errors  kShapeMismatch: a message has another
  // size than the transfer that waits for it; kOutOfMemory: too much would have to be put aside.
  [[nodiscard]] Result<bool> progress();

  // Whether transfers are posted that are not done.
  [[nodiscard]] bool is_empty() const noexcept { return num_open_ == 0; }

 private:
  // What is being read of a sender's ring.
  struct Incoming {
    std::int32_t tag = 0;
    std::size_t bytes = 0;
    std::size_t read = 0;
    TransferPtr transfer;          // that it is for, or
    std::vector<std::byte> aside;  // where it waits for one
  };
  struct Peer {
    std::deque<TransferPtr> outgoing;
    std::size_t written = 0;  // of the first, header included
    std::optional<Incoming> incoming;
    std::list<Incoming> aside;  // complete
  };

  [[nodiscard]] bool push(int peer);
  [[nodiscard]] Result<bool> pull(int peer);
  [[nodiscard]] Result<bool> begin_message(int peer);
  [[nodiscard]] Result<void> end_message(int peer);
  [[nodiscard]] Result<void> begin_aside(Incoming& incoming, int peer);
  [[nodiscard]] Result<bool> take_aside(const TransferPtr& transfer);
  // The first transfer that waits for such a message; it is taken off the list.
  [[nodiscard]] TransferPtr match(int peer, std::int32_t tag);
  [[nodiscard]] bool is_awaited(int peer) const;
  [[nodiscard]] Result<void> check_size(const Transfer& transfer,
                                        int peer,
                                        std::size_t bytes) const;
  void finish(Transfer& transfer);

  const GroupMemory& memory_;
  int rank_;
  std::vector<Peer> peers_;
  std::list<TransferPtr> awaited_;  // to be received, in the order in which they were posted
  std::size_t num_open_ = 0;
  std::size_t most_aside_;
  std::size_t num_aside_ = 0;  // bytes, overhead included
};

}  // namespace accel::shm
